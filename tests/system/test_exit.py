"""A process whose daemon threads are inside tamis ends as if they were not there."""

import subprocess
import sys

import pytest
from soak import SOAK

RUNS = 100 if SOAK else 3

THREADS = """
import itertools, threading, time
import tamis

class Index:
    def __index__(self):
        return 5

def endless():
    while True:
        time.sleep(0.001)
        yield 1

keys = list(range(300_000))
f = tamis.Bloom.build(keys, fpr=0.01)
{setup}
started = threading.Event()

def loop():
    while True:
        started.set()
        {call}

for _ in range(2):
    threading.Thread(target=loop, daemon=True).start()
started.wait()
time.sleep(0.05)
"""

CALLS = {
    "contains": ("", "f.contains(keys)"),
    "index": ("odd = [Index() for _ in range(1000)]", "f.contains(odd)"),
    "generator": ("", "f.contains(endless())"),
    "guard": ("g = tamis.Guard(tamis.stores.Memory())", "g.get_many(keys)"),
}


@pytest.mark.parametrize("name", CALLS)
def test_daemon_threads_do_not_abort_the_exit(name):
    setup, call = CALLS[name]
    code = THREADS.format(setup=setup, call=call)
    for _ in range(RUNS):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
