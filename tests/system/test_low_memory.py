"""Without memory or threads to be had, a call raises an honest error or works with less: nothing
ends the process, panics, or claims that a filter is damaged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from soak import SOAK

HELPERS = Path(__file__).parents[1] / "helpers"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits are set as on Linux")

# More address space than a call starts with, in bytes: in `make soak` in small steps.
COARSE = [0, 1 << 19, 1 << 21]
FINE = [0, *(int(2 ** (13 + step / 4)) for step in range(50))]


def starved(*arguments):
    from starved import SETTINGS

    command = [sys.executable, str(HELPERS / "starved.py"), *map(str, arguments)]
    environment = os.environ | SETTINGS
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@LINUX
@pytest.mark.parametrize("case", ["filters", "others"])
def test_public_calls_with_little_memory(case):
    done = starved(case, *(FINE if SOAK else COARSE))
    wrong = [line for line in done.stdout.splitlines() if "WRONG" in line]
    assert not wrong, "\n".join(wrong)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-3000:]
    outcomes = [line.split()[3] for line in done.stdout.splitlines()]
    # Otherwise the limits would have shown nothing.
    assert outcomes.count("MemoryError") > len(outcomes) / 20
    assert outcomes.count("ok") > len(outcomes) / 20


THREADLESS = """
import _thread, os, resource, sys
import numpy as np
import tamis
from tamis.filters import CLASSES
from tamis.planning.kinds import KINDS

def work(keys, many):
    made = [CLASSES[kind.name].build(keys, fpr=0.01, **option.arguments)
            for kind in KINDS.values() if kind.sizes for option in kind.options]
    made.append(tamis.Sharded.build(keys, fpr=0.01, shards=3))
    for f in made:
        assert f.contains(keys).all(), f
    assert made[0].contains(many)[keys].all()
    sets = {str(i): keys[i::50] for i in range(50)}
    c = tamis.Collection.build(sets, budget=1 << 20)
    offsets, ids = c.candidates_many(keys)
    assert len(offsets) == keys.size + 1

work(np.arange(1000), np.arange(2000))  # everything is imported before rights are given up
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)  # the limit does not hold for root
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    _thread.start_new_thread(int, ())
    sys.exit("a thread was started")
except RuntimeError:
    pass
work(np.arange(350_000), np.arange(1 << 22))
print("done")
"""


@LINUX
def test_builds_and_queries_without_another_thread():
    command = [sys.executable, "-c", THREADLESS]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr[-3000:]
