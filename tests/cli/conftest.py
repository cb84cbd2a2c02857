"""Fixtures of the tests of cli."""

import gzip
import os
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pytest
from command import ASKED, KEYS
from servers import postgres_url  # noqa: F401

import tamis
from tamis import cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of each kind, right and wrong."""
    here = tmp_path_factory.mktemp("cli")
    (here / "keys.txt").write_text("\n".join(KEYS) + "\n")
    (here / "keys.csv").write_text(
        "id,email\n" + "".join(f"00{i},{k}\n" for i, k in enumerate(KEYS))
    )
    (here / "log.txt").write_text("\n".join(ASKED))
    (here / "numbers.txt").write_text("\n".join(map(str, range(2000))))
    (here / "empty.txt").write_bytes(b"")
    (here / "empty.csv").write_bytes(b"")
    (here / "header.csv").write_text("id,email\n")
    (here / "junk").write_bytes(np.random.default_rng(1).bytes(5000))
    (here / "junk.csv").write_bytes(np.random.default_rng(1).bytes(5000))
    (here / "junk.gz").write_bytes(gzip.compress(b"a\nb\n" * 1000)[:30])
    (here / "junk.parquet").write_bytes(b"PAR1" + np.random.default_rng(1).bytes(5000))
    (here / "secret").write_bytes(b"too short")
    f = tamis.Ribbon.build(KEYS, fpr=0.001)
    f.save(here / "keys.tamis")
    damaged = bytearray(f.to_bytes())
    damaged[len(damaged) // 2] ^= 1
    (here / "damaged.tamis").write_bytes(damaged)
    for name, keys in (("one", KEYS[:500]), ("two", KEYS[500:])):
        each = tamis.Bloom(3000, fpr=0.01)
        each.update(keys)
        each.save(here / f"{name}.tamis")
    with closing(sqlite3.connect(here / "shop.db")) as db, db:
        db.execute("CREATE TABLE users (email TEXT PRIMARY KEY, name TEXT)")
        db.executemany("INSERT INTO users VALUES (?, 'x')", [(k,) for k in KEYS])
    return here


@pytest.fixture
def run(folder, monkeypatch, capfd):
    """Run a command in that folder; return its code, its output, and what it says beside."""
    monkeypatch.chdir(folder)
    # What a command draws at random is the same every time.
    made = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed=0: made(seed))

    def run(line, stdin=os.devnull):
        with (folder / stdin).open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            with pytest.raises(SystemExit) as end:
                cli.main(line.split() if isinstance(line, str) else line)
        out, err = capfd.readouterr()
        return end.value.code, out, err

    return run
