"""Growth laws, in instructions that valgrind counts, or in calls: `make soak` runs them."""

import cProfile
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from soak import SOAK

import tamis

pytestmark = pytest.mark.skipif(
    not (SOAK and shutil.which("valgrind")), reason="minutes, and valgrind: `make soak` runs it"
)

ADAPT = """
import tamis
from reference import of_one_quotient
f = tamis.Telescoping(1000, fpr=2**-4, seed=3)
keys, _ = of_one_quotient(910, 0, f.quotients, 3)
f.update(keys[:size])
remote = tamis.stores.Hashes(keys[:size], seed=3)
for absent in keys[900:].tolist():
    f.adapt(absent, remote)
"""

OPEN = """
import tamis
path = f"{folder}/{size}"
tamis.Bloom(size, bits_per_key=8).save(path)
tamis.load(path)
"""


def instructions(function, code, size, folder):
    """How many instructions a native function takes in a program."""
    given = f"size, folder = {size}, {str(folder)!r}\n"
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    done = subprocess.run(
        [*command, f"--toggle-collect=*{function}*", sys.executable, "-c", given + code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


def test_adapting_among_keys_of_one_quotient(tmp_path):
    """Its cost is bounded: a run that is too long is not matched."""
    few, many = (instructions("__pymethod_adapt__", ADAPT, n, tmp_path) for n in (60, 800))
    assert 0 < many < 2 * few


def test_opening_is_linear_in_the_file(tmp_path):
    counts = [instructions("__pyfunction_open_file", OPEN, n * 10**6, tmp_path) for n in (1, 2, 3)]
    once, twice, thrice = counts
    assert once > 10**5
    assert 0.8 < (thrice - twice) / (twice - once) < 1.25


def calls(function, *arguments, **options):
    """How many functions Python calls, which is the same every time."""
    profile = cProfile.Profile()
    profile.runcall(function, *arguments, **options)
    return sum(entry.callcount for entry in profile.getstats())


def test_planning_does_not_grow_with_the_keys():
    workload = tamis.Workload.zipf(1.0, universe=10**6, sample=10**5)
    for request in ({"bits_per_key": 10}, {"fpr": 1e-6}):
        tamis.plan(10**4, workload, **request)  # which fills caches
        small, large = (calls(tamis.plan, n, workload, **request) for n in (10**5, 10**9))
        assert large < 5 * small
