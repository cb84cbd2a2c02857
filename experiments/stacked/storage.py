"""Files behind filters: what a wasted lookup costs in SQLite and RocksDB, counted and timed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ACCESS = {"SSD": 100e-6, "HDD": 10e-3}
"""Seconds of a random read in the model; the paper names its hardware, but not these."""


def plain(keys: Any) -> list[Any]:
    """Return keys as Python objects."""
    return keys.to_pylist() if hasattr(keys, "to_pylist") else keys.tolist()


def as_bytes(key: Any) -> bytes:
    """Return a key as RocksDB has it."""
    return key.encode() if isinstance(key, str) else int(key).to_bytes(8, "big")


def as_column(key: Any) -> Any:
    """Return a key as SQLite has it: its integers have a sign."""
    return key if isinstance(key, str) or key < 2**63 else key - 2**64


@contextmanager
def files(folder: Path, keys: Any) -> Iterator[dict[str, Callable[[Any], Any]]]:
    """Write the keys to a file of each engine that is installed, and return how to look one up."""
    rows = sorted(plain(keys))
    db = sqlite3.connect(folder / "keys.sqlite")
    db.execute("CREATE TABLE stored (key PRIMARY KEY, value) WITHOUT ROWID")
    db.executemany("INSERT INTO stored VALUES (?, 'stored')", ((as_column(key),) for key in rows))
    db.commit()
    engines = {
        "sqlite": lambda key: db.execute(
            "SELECT value FROM stored WHERE key = ?", (as_column(key),)
        ).fetchone()
    }
    try:
        import rocksdict
    except ImportError:
        other = None
    else:
        other = rocksdict.Rdict(str(folder / "rocksdb"), rocksdict.Options(raw_mode=True))
        for start in range(0, len(rows), 100_000):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key in rows[start : start + 100_000]:
                batch.put(as_bytes(key), b"stored")
            other.write(batch)
        other.flush()
        engines["rocksdb"] = lambda key: other.get(as_bytes(key))
    try:
        yield engines
    finally:
        db.close()
        if other is not None:
            other.close()


def asked_through(f: Any, queries: Any, get: Callable[[Any], Any]) -> tuple[float, float]:
    """Query absent keys: a filter, then the file for what it accepts.

    Return the wasted lookups per query and the processor time per query in µs.
    """
    start = time.process_time()
    accepted = plain(queries if f is None else kept(queries, f.contains(queries)))
    for key in accepted:
        assert get(key) is None
    took = time.process_time() - start
    return len(accepted) / len(queries), 1e6 * took / len(queries)


def kept(values: Any, chosen: Any) -> Any:
    """Return the values that are chosen."""
    return values.filter(chosen) if hasattr(values, "filter") else values[chosen]
