"""Several processes: one SQLite file that two write to, and filters that a fork copies."""

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
from contract import SPECIMENS
from guards import set_lease

import tamis
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
    follower.store.release(follower.driver.protocol.owner)
    set_lease(follower, lease_until=0.0, renew_at=0.0)
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
    tests = Path(__file__).parents[1] / "helpers"
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("good\n", 0), done.stderr


def in_child(work):
    """Whether `work` returns true in a forked child, within a minute."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # ends a child that hangs
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


needs_fork = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@needs_fork
def test_a_child_reads_a_collection_and_does_not_write_to_that_of_its_parent():
    c = tamis.Collection.build({"a": range(10)})

    def read_and_add():
        with pytest.raises(RuntimeError, match="open the file again in the child"):
            c.append("child", range(10, 20))
        return c.candidates(5) == ["a"]

    assert in_child(read_and_add)
    c.append("parent", range(20, 30))
    assert c.candidates(25) == ["parent"]
    assert in_child(lambda: c.candidates(25) == ["parent"])


@needs_fork
def test_a_child_finds_names_while_its_parent_sorts_them(tmp_path):
    names = {f"set {i}": [i] for i in range(30_000)}
    tamis.Collection.build(names, path=tmp_path / "c")
    for delay in range(4):
        c = tamis.Collection.open(tmp_path / "c")
        sorting = threading.Thread(target=lambda c=c: c.names.find("set 7"))
        sorting.start()
        time.sleep(delay * 2e-3)
        assert in_child(lambda c=c: c.names.find("set 8") == 8)
        sorting.join()


@needs_fork
def test_a_child_queries_an_index_that_its_parent_updates(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"n": range(100)}), tmp_path / "a.parquet")
    ix = tamis.parquet.SkippingIndex.build(tmp_path, columns=["n"], threads=1)
    locked, done = threading.Event(), threading.Event()

    def hold():
        with ix._updating, ix._usage._lock, ix._footers._lock:
            locked.set()
            done.wait()

    holding = threading.Thread(target=hold, daemon=True)
    holding.start()
    assert locked.wait(20)

    def query():
        return ix.scan({"n": 5}).num_rows == 1 and ix.refresh() == 0

    assert in_child(query)
    done.set()
    holding.join()
    assert query()
