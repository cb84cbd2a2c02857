"""Several processes: one SQLite file that two write to, and filters that a fork copies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tamis
from contract import SPECIMENS
from tamis import stores

WRITER = """
import sys, tamis
store = tamis.stores.SQLite(sys.argv[1])
guard = tamis.Guard(store, tamis.Telescoping(capacity=50, fpr=2**-4, seed=5), lease=60)
for key in range(200):
    guard.put(key, str(key))
    if key % 3 == 0:
        guard.delete(key // 2)
    guard.get_many(range(1000, 1010))
    print(key, flush=True)
sys.stdin.read()
guard.close()
"""


def test_the_second_process_follows_the_first(tmp_path):
    path = tmp_path / "data.db"
    follower = tamis.Guard(stores.SQLite(path), tamis.Quotient(capacity=300, fpr=2**-4))
    follower.store.release(follower._trust.owner)
    follower._trust.lease_until = 0.0
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with writer:
        there = {}
        for line in writer.stdout:
            key = int(line)
            there[key] = str(key)
            if key % 3 == 0:
                there.pop(key // 2, None)
            # The writer may be some steps ahead, but what it printed has happened.
            assert follower.get(key) in (str(key), None if _soon_gone(key) else str(key))
            if key == 199:
                break
        assert follower.get_many(range(200)) == [there.get(key) for key in range(200)]
        assert follower.get_many(range(1000, 3000)) == [None] * 2000
        with pytest.raises(tamis.LeaseError):
            follower.put("mine", "now")
        writer.stdin.close()
    assert writer.returncode == 0
    stats = follower.stats
    assert stats.reads_saved > 1500
    assert (stats.rebuilds, stats.passed) == (1, 0)  # it followed the journal
    follower.put("mine", "now")
    assert follower.get_many(["mine", 199]) == ["now", "199"]
    follower.close()


def _soon_gone(key):
    """Whether the writer deletes the key again."""
    return any(later % 3 == 0 and later // 2 == key for later in range(key, 200))


FORKING = """
import os, signal, sys, threading, time
import numpy as np
import tamis
from contract import SPECIMENS

specimen = next(each for each in SPECIMENS if str(each) == sys.argv[1])
f = specimen.make(600_000, fpr=0.01)
f.update(np.arange(1000))
begun, done = threading.Semaphore(0), threading.Event()

def write():
    for start in range(1000, 600_000, 50_000):
        begun.release()
        f.update(np.arange(start, start + 49_000))
    done.set()

def read():
    while not done.is_set():
        f.to_bytes()

for work in (write, read):
    threading.Thread(target=work, daemon=True).start()
for delay in range(8):
    begun.acquire()
    time.sleep(delay * 2e-4)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that hangs
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        whole = f.contains(np.arange(1000)).all() or not f.one_sided
        f.update(np.arange(10**9, 10**9 + 100))
        f.add(10**9 + 100)
        whole &= f.contains(np.arange(10**9, 10**9 + 101)).all()
        whole &= len(tamis.from_bytes(f.to_bytes())) == len(f)
        os._exit(0 if whole else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        print("the child ended with", status)
        os._exit(1)
done.wait()
f.to_bytes()
print("good")
os._exit(0)
"""

INSERTING = {
    each.cls: each for each in SPECIMENS if each.cls.__name__ != "Sharded" and each.inserts
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("specimen", INSERTING.values(), ids=str)
def test_a_child_has_whole_filters(specimen):
    """A fork waits for writers, and leaves locks of readers behind unlocked."""
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(specimen)]
    tests = Path(__file__).parent
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("good\n", 0), done.stderr
