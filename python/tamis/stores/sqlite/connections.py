"""Connections of `tamis.stores.SQLite`: one for reads, which never wait, and one for writes."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from tamis._locks import Locked
from tamis.errors import FormatError, StoreError
from tamis.stores.base import check_address, schema_error, store_error
from tamis.stores.connections import ADDRESS_OF, read_address

_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}
"""Codes of errors that are `StoreError`s."""


def database_path(database: Any) -> str:
    """Return the path of a database, given as such, by an SQLAlchemy engine or by Django."""
    address = read_address(database, "sqlite")
    if address is None:
        kinds: Any = str | bytes | os.PathLike
        return os.fsdecode(check_address("path", database, kinds, f"a path, {ADDRESS_OF}"))
    path = address.name
    if not path or path == ":memory:" or path.startswith("file:"):
        raise ValueError(
            f"path must be a database in a file, not {path or ':memory:'!r} of {address.source}: "
            "the store opens the file with a connection of its own"
        )
    return path


class Connections:
    """The two connections to a database, opened when they are needed, each with a lock."""

    def __init__(self, path: str, timeout: float, *, wal: bool) -> None:
        """``timeout`` is how many seconds to wait for a lock; ``wal`` sets the journal mode."""
        self.path, self.timeout, self._wal = path, timeout, wal
        self.in_memory = path in (":memory:", "")
        self.opened, self.closed = 0, False
        self.forget()

    def forget(self) -> object:
        """Forget the connections, without closing them, and return them."""
        forgotten = getattr(self, "_writer", None), getattr(self, "_reader", None)
        self.lock, self.read_lock = threading.RLock(), threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        return forgotten

    def renew_locks(self) -> None:
        """Forget who holds the locks, and keep the connections."""
        self.lock, self.read_lock = threading.RLock(), threading.RLock()

    def reader(self) -> sqlite3.Connection:
        """Return the connection for reads, of which the caller holds the lock."""
        if self.in_memory:  # it has one connection
            return self.writer()
        if self._reader is None:
            self._reader = self.connect()
        return self._reader

    def writer(self) -> sqlite3.Connection:
        """Return the connection for writes, of which the caller holds the lock."""
        if self._writer is None:
            self._writer = self.connect()
            if self._wal:
                self._writer.execute("PRAGMA journal_mode = WAL")
        return self._writer

    def close(self) -> None:
        """Close the connections."""
        with self.lock, self.read_lock:
            self.closed = True
            for db in (self._writer, self._reader):
                if db is not None:
                    db.close()
            self._writer = self._reader = None

    def connect(self) -> sqlite3.Connection:
        """Open a connection."""
        path = self.path
        if self.closed:
            raise ValueError(f"the store of {path!r} is closed")
        try:
            self._create_private()
            db = sqlite3.connect(
                path, timeout=self.timeout, isolation_level=None, check_same_thread=False
            )
            # A column may hold text that is not UTF-8, which is read as bytes.
            db.text_factory = _text_or_bytes
            self.opened += 1
            return db
        except sqlite3.OperationalError:
            if not (folder := Path(path).parent).is_dir():
                raise FileNotFoundError(
                    f"path must be in an existing folder, not {path!r}: there is no folder "
                    f"{str(folder)!r}"
                ) from None
            if Path(path).is_dir():
                raise IsADirectoryError(
                    f"path must be a database file, not the folder {path!r}"
                ) from None
            raise

    def _create_private(self) -> None:
        """Create a missing file for this user alone: it will hold a secret key and the values."""
        if self.in_memory or self.path.startswith("file:"):
            return
        with suppress(OSError):  # it exists, or SQLite says what is wrong
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def translate(self, error: BaseException | None) -> None:
        """Translate an SQLite error: raise the error of tamis that corresponds to it, if any."""
        if not isinstance(error, sqlite3.DatabaseError):
            return
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _UNAVAILABLE:
            raise store_error(f"SQLite database {self.path!r}", error) from error
        if code == sqlite3.SQLITE_ERROR and str(error).startswith("no such"):
            raise schema_error(f"SQLite database {self.path!r}", error) from error
        if code == sqlite3.SQLITE_NOTADB:
            raise FormatError(
                f"path must be an SQLite database, not {self.path!r}: {error}"
            ) from error


class Reading:
    """A context with the connection for reads."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        # A database in memory has one connection.
        lock = connections.lock if connections.in_memory else connections.read_lock
        self._locked = Locked([lock])

    def __enter__(self) -> sqlite3.Connection:
        self._locked.__enter__()
        try:
            return self._connections.reader()
        except BaseException as error:
            self._locked.__exit__()
            self._connections.translate(error)
            raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._locked.__exit__()
        if error is not None:
            self._connections.translate(error)


class Writing:
    """A context that runs in one transaction, which holds the write lock from the start.

    If it is not to wait for another writer, it raises `StoreError` instead. A transaction that a
    signal interrupts is rolled back, at the latest when the context is dropped.
    """

    _db: sqlite3.Connection | None = None

    def __init__(self, connections: Connections, wait: bool) -> None:
        self._connections, self._wait = connections, wait
        self._locked = Locked([connections.lock], wait=wait)

    def __enter__(self) -> sqlite3.Connection:
        connections = self._connections
        if not self._locked.__enter__():
            raise StoreError(f"SQLite database {connections.path!r} is busy")
        try:
            self._db = db = connections.writer()
            if self._wait:
                db.execute("BEGIN IMMEDIATE")
                return db
            db.execute("PRAGMA busy_timeout = 0")
            try:
                db.execute("BEGIN IMMEDIATE")
            finally:
                db.execute(f"PRAGMA busy_timeout = {int(1000 * connections.timeout)}")
            return db
        except BaseException as error:
            self._end()
            connections.translate(error)
            raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is None:
                assert self._db is not None
                self._db.execute("COMMIT")
        except BaseException as failed:
            error = failed
            raise
        finally:
            self._end()
            self._connections.translate(error)

    def _end(self) -> None:
        """Roll back an open transaction, and release the lock."""
        # Some errors, such as a full disk, have already ended the transaction.
        if self._db is not None and self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._db = None
        self._locked.__exit__()

    def __del__(self) -> None:
        if self._db is not None:
            self._end()


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
