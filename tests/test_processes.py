"""Two processes on one SQLite file: the second follows the first, and takes over the lease."""

import subprocess
import sys

import pytest

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
