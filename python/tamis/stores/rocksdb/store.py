"""`tamis.stores.RocksDB`: a RocksDB database through rocksdict (``pip install tamis[rocksdb]``).

The first byte of an entry says what it is: ``d`` and a key hold the key's value, ``h`` and an index
entry make up the index, ``j`` and a number hold changes that it does not have yet
(`index.py`), ``m`` and a name hold metadata, ``e`` holds the position. An entry of the index is a
hash. A write is one batch, which RocksDB applies atomically.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import Any

from tamis._clock import now
from tamis._native import encode_hashes
from tamis._types import FilePath
from tamis.errors import StoreError
from tamis.stores.base import (
    BATCH,
    Changes,
    Commit,
    Hasher,
    HashRows,
    PlainKey,
    Store,
    Value,
    check_address,
    commit_of,
    lease_error,
    position_number,
)
from tamis.stores.connections import forget_after_fork
from tamis.stores.encoding import (
    decode_hashes,
    decode_key,
    encode_keys,
    encode_values,
    load_values,
)
from tamis.stores.lease import LocalLease
from tamis.stores.rocksdb.index import LazyIndex
from tamis.stores.tail import View

_MAX_CALL = 30.0
"""Seconds for which `RocksDB.close` waits for the calls of other threads."""


class RocksDB(Store):
    """A RocksDB database. RocksDB lets only one process open it at a time.

    With ``sync=True`` a write is on disk when it returns. By default, as with RocksDB itself, it is
    in the operating system's cache: it survives a crash of the process, but not of the machine.
    """

    shared = False

    def __init__(self, path: FilePath, *, sync: bool = False) -> None:
        """Open the database in the folder ``path``; create it if it does not exist."""
        try:
            import rocksdict
        except ImportError:
            raise ImportError(
                "tamis.stores.RocksDB needs rocksdict: pip install tamis[rocksdb]"
            ) from None
        self._path = os.fsdecode(check_address("path", path, str | bytes | os.PathLike, "a path"))
        self._make_batch: Callable[[], Any] = lambda: rocksdict.WriteBatch(raw_mode=True)
        self._options = rocksdict.WriteOptions()
        self._options.sync = sync
        self._translated = _TranslatedErrors(self._path)
        self._db: Any = self._open(rocksdict)
        self._lock = threading.RLock()
        self._hasher: Hasher | None = None
        self._lease = LocalLease()
        # No other process writes, so the position is known. Its random part is new in each process:
        # a count that a crash of the machine undid is used again, but with another random part.
        self._history = secrets.token_hex(8)
        with self._translated:
            stored = self._db.get(b"e")
            self._position: str = f"1.{self._history}" if stored is None else stored.decode()
            if stored is None:
                self._db.put(b"e", self._position.encode())
            self._index = LazyIndex(self._db, self._make_batch)
        forget_after_fork(self)

    def _open(self, rocksdict: Any) -> Any:
        try:
            # For this user alone: the files hold a secret key and the values.
            with suppress(OSError):  # it exists, or RocksDB says what is wrong
                os.mkdir(self._path, 0o700)
            return rocksdict.Rdict(self._path, rocksdict.Options(raw_mode=True))
        except Exception as error:  # rocksdict has no exception class of its own
            if Path(self._path).is_file():
                raise NotADirectoryError(
                    f"path must be a folder, not the file {self._path!r}"
                ) from None
            raise StoreError(
                f"RocksDB database {self._path!r} cannot be opened; only one process at a time "
                f"can open it: {error}"
            ) from error

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        with self._translated:
            found = self._db.get(encode_keys(keys, b"d"))
        return load_values(found)

    def put_many(
        self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str, since: str = ""
    ) -> Commit:
        """Write distinct keys in one batch."""
        entries, stored = encode_keys(keys, b"d"), encode_values(values)
        with self._lock:
            self._check_lease(owner)
            with self._translated:
                existed = self._begin_write(entries)
                batch = self._make_batch()
                for entry, value in zip(entries, stored, strict=True):
                    batch.put(entry, value)
                before = self._position
                self._write(batch, True, keys, entries, [not was for was in existed])
                return commit_of(keys, existed, True, since, before, self._position)

    def delete_many(self, keys: Sequence[PlainKey], owner: str, since: str = "") -> Commit:
        """Delete distinct keys in one batch."""
        entries = encode_keys(keys, b"d")
        with self._lock:
            self._check_lease(owner)
            with self._translated:
                existed = self._begin_write(entries)
                batch = self._make_batch()
                for entry in compress(entries, existed):
                    batch.delete(entry)
                before = self._position
                self._write(batch, False, keys, entries, existed)
                return commit_of(keys, existed, False, since, before, self._position)

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the position and the keys, in batches."""
        return self._position, self._keys()

    def run(self, lo: int, hi: int) -> HashRows:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        last = b"h" + hi.to_bytes(8, "big") + b"\xff" * 8
        found = []
        view = self._view(lo, hi)
        with self._translated:
            for entry in self._db.keys(from_key=b"h" + lo.to_bytes(8, "big")):
                if entry[: len(last)] > last:
                    break
                found.append(entry[1:])
        return view.apply(decode_hashes(found))

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        return self._view(0, 2**64 - 1).apply_to_parts(map(decode_hashes, self._prefixed(b"h")))

    def _view(self, lo: int, hi: int) -> View:
        """Return the changes of a range that the index may not have yet; read the index next."""
        if self._index.stale:
            with self._lock, self._translated:
                if self._index.stale:
                    self._index.reload()
        return self._index.tail.within(lo, hi)

    def changes(self, since: str, limit: int | None = None) -> Changes | None:
        """Return no changes at the same position; otherwise `None`, as there is no journal."""
        position = self._position
        return Changes(position, [], []) if since == position else None

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher; rebuild the index if it had another name."""
        with self._lock:
            self._check_lease(owner)
            self._hasher = hasher
            indexed = self.metadata("index")
            with self._translated:
                if indexed == name:
                    self._index.resume(hasher)
                    return
                self._reindex(hasher)
                self._index.start(hasher)
            self.metadata("index", name)

    def _reindex(self, hasher: Hasher) -> None:
        # The index has no name until it is complete, so that it is rebuilt after a crash here.
        self.metadata("index", b"")
        self._db.delete_range(b"h", b"i")
        for keys in self._keys():
            batch = self._make_batch()
            for hash in encode_hashes(hasher(keys)):
                batch.put(b"h" + hash, b"")
            self._db.write(batch)

    def lease(self, owner: str, seconds: float) -> bool:
        """Take the lease, which is kept in memory: no other process can open the database."""
        with self._lock:
            return self._lease.take(owner, seconds)

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        with self._lock:
            self._lease.release(owner)

    def metadata(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return the metadata of this name; first set it to ``value``, if given."""
        with self._translated:
            if value is not None:
                self._db.put(b"m" + name.encode(), value)
            found: bytes | None = self._db.get(b"m" + name.encode())
        return found

    def close(self) -> None:
        """Close the database, once the calls of other threads have ended."""
        with self._lock:
            db, self._db = self._db, _Closed()
            self._index.db = self._db
        with self._translated:
            _close_when_idle(db)

    def forget_connections(self) -> object:
        """Refuse to work in a forked child, as only one process can use the database."""
        self._lock = threading.RLock()
        inherited = self._db
        self._db = self._index.db = _OfParent(self._path)
        return inherited

    def _keys(self) -> Iterator[list[PlainKey]]:
        for part in self._prefixed(b"d"):
            yield [decode_key(entry) for entry in part]

    def _prefixed(self, prefix: bytes) -> Iterator[list[bytes]]:
        """Iterate over the entries with this first byte, without it, in batches."""
        part: list[bytes] = []
        with self._translated:
            for entry in self._db.keys(from_key=prefix):
                if not entry.startswith(prefix):
                    break
                part.append(entry[1:])
                if len(part) == BATCH:
                    yield part
                    part = []
        if part:
            yield part

    def _begin_write(self, entries: list[bytes]) -> list[bool]:
        """Return for each entry whether it exists."""
        if self._hasher is not None:
            self._index.update_if_due()
        return [value is not None for value in self._db.get(entries)]

    def _write(
        self,
        batch: Any,
        added: bool,
        keys: Sequence[PlainKey],
        entries: list[bytes],
        changed: list[bool],
    ) -> None:
        """Write a batch, and add or remove the keys that changed and their entries."""
        if not any(changed):
            self._db.write(batch, self._options)
            return
        if not all(changed):
            keys, entries = [*compress(keys, changed)], [*compress(entries, changed)]
        position = f"{position_number(self._position) + 1}.{self._history}"
        batch.put(b"e", position.encode())
        indexed = self._hasher is not None
        if indexed:
            self._index.log(batch, added, entries)
        else:
            batch.put(b"mindex", b"")  # an index that is there misses this write
        try:
            self._db.write(batch, self._options)
            self._position = position
            if indexed:
                self._index.logged(added, keys)
        except BaseException:
            self._index.stale = indexed
            raise

    def _check_lease(self, owner: str) -> None:
        if self._lease.holder != owner:
            raise lease_error(self._lease.holder)


class _TranslatedErrors:
    """A context in which errors of the driver, which have no common class, are `StoreError`s."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            return
        if isinstance(error, Exception) and not isinstance(error, StoreError):
            raise StoreError(f"RocksDB database {self._path!r} failed: {error}") from error


def _close_when_idle(db: Any) -> None:
    """Close a database; while another thread is in a call, it refuses, so try again."""
    until = now() + _MAX_CALL
    while True:
        try:
            db.close()
            return
        except RuntimeError as error:
            if "borrowed" not in str(error) or now() > until:
                raise
        time.sleep(0.001)


class _Closed:
    """Takes the place of a closed database and refuses every call."""

    def close(self) -> None:
        """Do nothing, as guards that share a store close it one after the other."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError("the store is closed")


class _OfParent:
    """Takes the place of the database in a forked child and refuses every call."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        raise StoreError(
            f"RocksDB database {self._path!r} was opened before the process forked, and only one "
            "process at a time can use it"
        )
