"""Growth laws, in instructions that valgrind counts: `make soak` runs them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import SOAK

pytestmark = pytest.mark.skipif(
    not (SOAK and shutil.which("valgrind")), reason="minutes, and valgrind: `make soak` runs it"
)

ADAPT = """
import numpy as np
import tamis
from test_telescoping import of_one_quotient
f = tamis.Telescoping(1000, fpr=2**-4, seed=3)
keys, _ = of_one_quotient(910, 0, f.quotients, 3)
f.update(keys[:size])
remote = tamis.stores.Hashes(keys[:size], seed=3)
if work:
    for absent in keys[900:].tolist():
        f.adapt(absent, remote)
"""

OPEN = """
import tamis
path = f"{folder}/{size}"
tamis.Bloom(size, bits_per_key=8).save(path)
if work:
    tamis.load(path)
"""

PLAN = """
import tamis
workload = tamis.Workload.zipf(1.0, universe=10**6, sample=10**5)
if work:
    tamis.plan(size, workload, bits_per_key=10)
"""


def instructions(code, size, folder):
    """How many instructions the work takes, without what comes before it."""
    counts = []
    for work in (False, True):
        given = f"size, work, folder = {size}, {work}, {str(folder)!r}\n"
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        done = subprocess.run(
            [*command, sys.executable, "-c", given + code],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": "0", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin"},
        )
        counts.append(int(re.search(r"Collected : (\d+)", done.stderr)[1]))
    return counts[1] - counts[0]


def test_adapting_among_keys_of_one_quotient(tmp_path):
    """Its cost is bounded: a run that is too long is not matched."""
    few, many = (instructions(ADAPT, size, tmp_path) for size in (60, 800))
    assert many < 2 * few


def test_opening_is_linear_in_the_file(tmp_path):
    once, twice, thrice = (instructions(OPEN, n * 10**6, tmp_path) for n in (1, 2, 3))
    assert 0.5 < (thrice - twice) / (twice - once) < 2


def test_planning_does_not_grow_with_the_keys(tmp_path):
    small, large = (instructions(PLAN, size, tmp_path) for size in (10**5, 10**9))
    assert large < 5 * small
