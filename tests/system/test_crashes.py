"""`kill -9` during a mixed load: after reopening, no stored key is denied."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from soak import SOAK

KILLS = 500 if SOAK else 25
FILTERS = ["quotient", "telescoping", "cuckoo", "bloom", "stack"]


class Forker:
    """The process that forks the workers."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parents[1] / "helpers" / "crash_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._heard = b""

    def fork(self, *words):
        self._process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        while not (word := self.hear(30)).isdecimal():
            assert word, "no child was forked"  # other words are leftovers of the previous child
        return int(word)

    def hear(self, seconds):
        """Return the next word, or an empty one."""
        until = time.monotonic() + seconds
        while b"\n" not in self._heard:
            left = max(until - time.monotonic(), 0)
            if not select.select([self._process.stdout], [], [], left)[0]:
                return ""
            said = os.read(self._process.stdout.fileno(), 65536)
            assert said, "the forking process died"
            self._heard += said
        word, _, self._heard = self._heard.partition(b"\n")
        return word.decode()

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def wait_for(child):
    """Wait until a process is gone, and with it its locks."""
    while Path(f"/proc/{child}").exists():
        time.sleep(0.001)


@pytest.fixture
def forker():
    forker = Forker()
    yield forker
    forker.close()


@pytest.mark.parametrize("kind", ["SQLite", "RocksDB"])
def test_no_key_is_denied_after_a_kill(kind, tmp_path, forker):
    if kind == "RocksDB":
        pytest.importorskip("rocksdict")
    chance = random.Random(1)
    half_done = stored = 0
    for seed in range(KILLS):
        filter = FILTERS[seed % len(FILTERS)]
        folder = tmp_path / filter
        folder.mkdir(exist_ok=True)
        child = forker.fork("load", kind, folder, filter, seed)
        want_half, half = seed % 3 < 2, False
        until = time.monotonic() + chance.uniform(0.02, 0.2)
        while time.monotonic() < until or (want_half and not half):
            assert time.monotonic() < until + 60
            if word := forker.hear(0.005):
                half = word == "half"
        os.kill(child, signal.SIGKILL)
        wait_for(child)
        half_done += half
        child = forker.fork("verify", kind, folder, filter, seed)
        found = json.loads(forker.hear(60))
        wait_for(child)
        assert found["trusted"]
        assert not found["missing"]
        assert not found["denied"]
        stored += found["stored"]
    assert stored > 0
    assert half_done >= KILLS / 2
