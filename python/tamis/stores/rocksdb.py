"""`tamis.stores.RocksDB`: a RocksDB database through rocksdict (``pip install tamis[rocksdb]``).

The first byte of an entry says what it is: ``d`` and a key hold the key's value, ``h`` and an index
entry make up the index, ``n`` and a name hold a note, ``e`` holds the epoch. A write is one batch,
which RocksDB applies atomically.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tamis._types import FilePath
from tamis.stores._keyvalue import (
    changes_without_journal,
    entry_hashes,
    index_entries,
    load_values,
    next_epoch,
)
from tamis.stores.contract import (
    BATCH,
    Changes,
    Commit,
    Hasher,
    HashRows,
    PlainKey,
    Store,
    Value,
    decode_key,
    encode_key,
    encode_value,
    lease_error,
)


class RocksDB(Store):
    """A RocksDB database. RocksDB lets only one process open it at a time."""

    shared = False

    def __init__(self, path: FilePath) -> None:
        """Open the database in the folder ``path``; create it if it does not exist."""
        try:
            import rocksdict
        except ImportError:
            raise ImportError(
                "tamis.stores.RocksDB needs rocksdict: pip install tamis[rocksdb]"
            ) from None
        self._make_batch: Callable[[], Any] = lambda: rocksdict.WriteBatch(raw_mode=True)
        self._db: Any = rocksdict.Rdict(os.fsdecode(path), rocksdict.Options(raw_mode=True))
        self._lock = threading.RLock()
        self._hasher: Hasher | None = None
        self._holder: str | None = None
        if self._db.get(b"e") is None:
            self._db.put(b"e", next_epoch("0").encode())

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        return load_values(self._db.get([b"d" + encode_key(key) for key in keys]))

    def put_many(self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys and their hashes in one batch."""
        with self._lock:
            existed = self._existing(keys, owner)
            batch = self._make_batch()
            for key, value in zip(keys, values, strict=True):
                batch.put(b"d" + encode_key(key), encode_value(value))
            new = [key for key, was in zip(keys, existed, strict=True) if not was]
            for entry in self._entries(new):
                batch.put(entry, b"")
            return self._commit(batch, existed, changed=bool(new))

    def delete_many(self, keys: Sequence[PlainKey], owner: str) -> Commit:
        """Delete distinct keys and their hashes in one batch."""
        with self._lock:
            existed = self._existing(keys, owner)
            batch = self._make_batch()
            gone = [key for key, was in zip(keys, existed, strict=True) if was]
            for key, entry in zip(gone, self._entries(gone), strict=True):
                batch.delete(b"d" + encode_key(key))
                batch.delete(entry)
            return self._commit(batch, existed, changed=bool(gone))

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys, in batches."""
        return self.epoch(), self._keys()

    def run(self, lo: int, hi: int) -> HashRows:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        last = b"h" + hi.to_bytes(8, "big") + b"\xff" * 8
        found = []
        for entry in self._db.keys(from_key=b"h" + lo.to_bytes(8, "big")):
            if entry[: len(last)] > last:
                break
            found.append(entry[1:])
        return entry_hashes(found)

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        return map(entry_hashes, self._prefixed(b"h"))

    def epoch(self) -> str:
        """Return the current epoch."""
        epoch: str = self._db.get(b"e").decode()
        return epoch

    def changes(
        self, since: str, until: str | None = None, limit: int | None = None
    ) -> Changes | None:
        """Return no changes if the epochs are equal; otherwise `None`, as there is no journal."""
        return changes_without_journal(since, self.epoch() if until is None else until)

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher; rebuild the index if it had another name."""
        with self._lock:
            self._check_lease(owner)
            self._hasher = hasher
            if self.note("index") == name:
                return
            # The index has no name until it is complete, so that it is rebuilt after a crash here.
            self.note("index", b"")
            self._db.delete_range(b"h", b"i")
            for keys in self._keys():
                batch = self._make_batch()
                for entry in self._entries(keys):
                    batch.put(entry, b"")
                self._db.write(batch)
            self.note("index", name)

    def lease(self, owner: str, seconds: float) -> bool:
        """Take the lease, which is kept in memory: no other process can open the database."""
        with self._lock:
            if self._holder not in (None, owner):
                return False
            self._holder = owner
            return True

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        with self._lock:
            if self._holder == owner:
                self._holder = None

    def note(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return the note of this name, after setting it to ``value`` if that is given."""
        if value is not None:
            self._db.put(b"n" + name.encode(), value)
        noted: bytes | None = self._db.get(b"n" + name.encode())
        return noted

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _keys(self) -> Iterator[list[PlainKey]]:
        for part in self._prefixed(b"d"):
            yield [decode_key(entry) for entry in part]

    def _prefixed(self, prefix: bytes) -> Iterator[list[bytes]]:
        """Iterate over the entries with this first byte, without it, in batches."""
        part: list[bytes] = []
        for entry in self._db.keys(from_key=prefix):
            if not entry.startswith(prefix):
                break
            part.append(entry[1:])
            if len(part) == BATCH:
                yield part
                part = []
        if part:
            yield part

    def _entries(self, keys: Sequence[PlainKey]) -> list[bytes]:
        """Return the index entries of keys, with their first byte."""
        if self._hasher is None:
            return []
        return [b"h" + entry for entry in index_entries(self._hasher, keys)]

    def _existing(self, keys: Sequence[PlainKey], owner: str) -> list[bool]:
        self._check_lease(owner)
        return [value is not None for value in self.get_many(keys)]

    def _commit(self, batch: Any, existed: list[bool], *, changed: bool) -> Commit:
        before = self.epoch()
        if changed:
            batch.put(b"e", next_epoch(before).encode())
        self._db.write(batch)
        return Commit(existed, before, self.epoch())

    def _check_lease(self, owner: str) -> None:
        if self._holder != owner:
            raise lease_error(self._holder)
