"""`tamis.stores.SQLite`: a table in an SQLite database, an existing one or the guard's own."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from tamis._clock import clock_id, now
from tamis._types import FilePath
from tamis.errors import FormatError, LeaseError, StoreError
from tamis.stores import _fork
from tamis.stores import _sqlite_tables as tables
from tamis.stores._sql import SIGN, Journaled, State, from_signed
from tamis.stores.contract import (
    BATCH,
    Commit,
    HashRows,
    PlainKey,
    Value,
    attach_error,
    batches,
    check_timeout,
    encode_key,
    encode_value,
    store_error,
)

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


class SQLite(Journaled):
    """A table in an SQLite database.

    By default it creates a table of its own. To guard an existing table in place, pass ``table``,
    ``key`` and ``value``: the names of the table, of its key column (unique; text, integers or
    blobs) and of the column that `get` returns. Other programs may continue to write to that table,
    with or without tamis.

    >>> import tamis
    >>> with tamis.Guard(SQLite(":memory:"), tamis.Bloom(capacity=1000, fpr=0.01)) as g:
    ...     g.put("ada", "1815")
    ...     g.get("ada"), g.get("alan")
    ('1815', None)
    """

    _param = "?"

    def __init__(
        self,
        path: FilePath,
        *,
        table: str | None = None,
        key: str | None = None,
        value: str | None = None,
        timeout: float | None = 30.0,
    ) -> None:
        """Open the database; ``timeout`` is how many seconds to wait for a writer's lock."""
        super().__init__(table, key, value)
        timeout = check_timeout(timeout)
        self._path, self._timeout = os.fsdecode(path), 1e6 if timeout is None else timeout
        self._in_memory = self._path in (":memory:", "")
        self._lock, self._read_lock = threading.RLock(), threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._read_db: sqlite3.Connection | None = None
        self._opened = 0
        self._closed = False
        k, v = self._k, self._v
        self._upsert = (
            f"INSERT INTO {self._t} ({k}, {v}) VALUES (?, ?) "
            f"ON CONFLICT ({k}) DO UPDATE SET {v} = excluded.{v}"
        )
        # The column's affinity must not turn text into a number.
        self._delete = f"DELETE FROM {self._t} WHERE {k} = ?1 AND typeof({k}) = typeof(?1)"
        self._last_row = f"SELECT seq, token FROM {self._t_journal} ORDER BY seq DESC LIMIT 1"
        self._rows_after = f"SELECT key, added FROM {self._t_journal} WHERE seq > ?"
        self._insert_hash = f"INSERT INTO {self._t_hash} VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        self._delete_hash = f"DELETE FROM {self._t_hash} WHERE hi = ? AND lo = ? AND key = ?"
        try:
            with self._writing() as db:
                self._create_tables(db)
        except BaseException:
            self.close()
            raise
        _fork.register(self)

    def put_many(self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys and their hashes in one transaction."""
        stored = values if self.shared else [encode_value(value) for value in values]
        with self._writing() as db:
            state = self._begin_write(db, owner)
            columns = self._columns_of(db, keys)
            db.executemany(self._upsert, zip(columns, stored, strict=True))
            new, after = self._journaled(db, state, 1, columns)
            if new:
                self._update_index(db, *self._among(new, keys, columns), [], [])
            if new is columns:
                return Commit([False] * len(keys), state.epoch, after)
            return Commit([column not in new for column in columns], state.epoch, after)

    def delete_many(self, keys: Sequence[PlainKey], owner: str) -> Commit:
        """Delete distinct keys and their hashes in one transaction."""
        with self._writing() as db:
            state = self._begin_write(db, owner)
            forms_of = self._forms if self._is_mixed(db) else self._only_form
            pairs = [(key, form) for key in keys for form in forms_of(key)]
            forms = [form for _, form in pairs]
            db.executemany(self._delete, [(form,) for form in forms])
            gone, after = self._journaled(db, state, 0, forms)
            given, columns = self._among(gone, [key for key, _ in pairs], forms)
            if gone:
                self._update_index(db, [], [], given, columns)
            existed = set(given)
            return Commit([key in existed for key in keys], state.epoch, after)

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys at that epoch, in batches, from one read transaction."""
        if self._in_memory:
            with self._reading() as db:
                keys = [self._from_column(key) for part in self._read_keys(db) for key in part]
                return self._last_epoch(db), batches(keys)
        db = self._connect()
        try:
            db.execute("BEGIN")
            epoch = self._last_epoch(db)
        except BaseException as error:
            db.close()
            self._translate(error)
            raise

        def read() -> Iterator[list[Any]]:
            with closing(db):
                yield []  # so that the connection is closed even if nobody reads on
                try:
                    for part in self._read_keys(db):
                        yield [self._from_column(key) for key in part]
                except sqlite3.DatabaseError as error:
                    self._translate(error)
                    raise

        parts = read()
        next(parts)
        return epoch, parts

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return `run` of each range."""
        query = f"SELECT hi, lo FROM {self._t_hash} WHERE hi BETWEEN ? AND ?"
        with self._reading() as db:
            return [
                from_signed(db.execute(query, (lo - SIGN, hi - SIGN)).fetchall())
                for lo, hi in ranges
            ]

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in order, in batches."""
        last: tuple[int, int, Any] = (-SIGN, -SIGN, None)
        query = (
            f"SELECT hi, lo, key FROM {self._t_hash} WHERE (hi, lo) >= (?, ?) "
            f"AND NOT (hi = ?1 AND lo = ?2 AND key IS ?3) ORDER BY hi, lo LIMIT {BATCH}"
        )
        while True:
            with self._reading() as db:
                rows = db.execute(query, last).fetchall()
            if not rows:
                return
            last = rows[-1]
            yield from_signed([row[:2] for row in rows])

    def look(self) -> object:
        """Return SQLite's counter of commits by other connections, which include the writer's."""
        with self._reading() as db:
            if self._in_memory:
                return db.total_changes
            return self._opened, db.execute("PRAGMA data_version").fetchone()[0]

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, which expires by a clock that the processes of a boot share.

        A lease of another boot, or of a system without such a clock, is watched for its length.
        """
        with self._writing() as db:
            # In this order: the lease lasts at least until the guard stops to believe in it.
            until = now() + seconds
            record = db.execute(
                f"SELECT l.value, l.until, c.value, c.until FROM {self._t_note} l "
                f"LEFT JOIN {self._t_note} c ON c.name = 'clock' WHERE l.name = 'lease'"
            ).fetchone()
            clock = (clock_id() or "").encode()
            name = (owner + self._child).encode()
            if record is not None and record[0] != name:
                _, other_until, other_clock, length = record
                if clock and other_clock == clock:
                    over = other_until <= now()
                else:
                    over = self._watched.is_over(record, max(length or 0.0, seconds))
                if not over:
                    return False
            db.executemany(
                f"INSERT OR REPLACE INTO {self._t_note} VALUES (?, ?, ?)",
                [("lease", name, until), ("clock", clock, seconds)],
            )
            return True

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        with self._writing() as db:
            db.execute(
                f"DELETE FROM {self._t_note} WHERE name = 'lease' AND value = ?",
                ((owner + self._child).encode(),),
            )

    def unguard(self) -> None:
        """Drop the guard's tables and triggers, keep the guarded table, and close the store."""
        with self._writing() as db:
            tables.drop_triggers(db, self._table)
            for table in (self._t_hash, self._t_journal, self._t_note):
                db.execute(f"DROP TABLE {table}")
        self.close()

    def close(self) -> None:
        """Close the connections."""
        with self._lock, self._read_lock:
            self._closed = True
            for db in (self._db, self._read_db):
                if db is not None:
                    db.close()
            self._db = self._read_db = None

    def forget_connections(self) -> object:
        """Reopen the database in a forked child; a database in memory is a copy of its own."""
        self._lock, self._read_lock = threading.RLock(), threading.RLock()
        self._in_child()
        if self._in_memory:
            return None
        inherited = (self._db, self._read_db)
        self._db = self._read_db = None
        return inherited

    # Connections and transactions.

    def _connect(self) -> sqlite3.Connection:
        path = self._path
        if self._closed:
            raise ValueError(f"the store of {path!r} is closed")
        try:
            db = sqlite3.connect(
                path, timeout=self._timeout, isolation_level=None, check_same_thread=False
            )
            self._opened += 1
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

    def _reading(self) -> _Reading:
        return _Reading(self)

    def _writing(self, wait: bool = True) -> _Writing:
        return _Writing(self, wait)

    def _write_connection(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = self._connect()
            if not self.shared:
                self._db.execute("PRAGMA journal_mode = WAL")
        return self._db

    def _begin_write(self, db: sqlite3.Connection, owner: str) -> State:
        """Check the lease and bring the index up to date."""
        state = self._read_state(db, owner + self._child)
        if self._hasher is None:
            raise attach_error()
        self._catch_up(db, state.indexed, state.last)
        return state

    def _translate(self, error: BaseException | None) -> None:
        """Raise the error of tamis that stands for an error of SQLite, if there is one."""
        if not isinstance(error, sqlite3.DatabaseError):
            return
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _UNAVAILABLE:
            raise store_error(f"SQLite database {self._path!r}", error) from error
        if code == sqlite3.SQLITE_NOTADB:
            raise FormatError(
                f"path must be an SQLite database, not {self._path!r}: {error}"
            ) from error

    # Tables.

    def _create_tables(self, db: sqlite3.Connection) -> None:
        """Create the tables and triggers that do not exist yet."""
        if self.shared:
            columns = tables.table_columns(db, self._table)
            self._check_columns(columns)
            self._type = tables.key_type(db, self._table, self._key, columns)
        else:
            self._type = "blob"
            db.execute(
                f"CREATE TABLE IF NOT EXISTS {self._t} (key BLOB PRIMARY KEY, value BLOB) "
                "WITHOUT ROWID"
            )
        tables.create_tables(db, self._table)
        if self._read_note(db, "layout") != tables.LAYOUT:
            tables.create_triggers(db, self._table, self._key, self._type if self.shared else None)
            self._write_note(db, "layout", tables.LAYOUT)

    _quote = staticmethod(tables.quote)

    # Keys in the table.

    def _to_column(self, key: PlainKey) -> Any:
        if not self.shared:
            return encode_key(key)
        if isinstance(key, int):
            return key if self._type != "text" and -SIGN <= key < SIGN else None
        return {"text": _text(key), "blob": key}.get(self._type)

    def _forms(self, key: PlainKey) -> list[Any]:
        """Return what may stand for a key in the table.

        SQLite's columns hold values of any type, so bytes may be a blob or text. No other form of
        an integer is found in a column of text, which turns integers into text.
        """
        if not self.shared or isinstance(key, int):
            return self._only_form(key)
        return [key] if (text := _text(key)) is None else [key, text]

    def _only_form(self, key: PlainKey) -> list[Any]:
        return [] if (column := self._to_column(key)) is None else [column]

    def _is_mixed(self, db: sqlite3.Connection) -> bool:
        """Return whether the column holds bytes in another form than the one that is written.

        In SQLite's order, which the unique index has, numbers come before text before blobs.
        """
        if not self.shared:
            return False
        other = {"text": ">= x''", "integer": ">= ''", "blob": ">= '' AND {} < x''"}[self._type]
        query = f"SELECT 1 FROM {self._t} WHERE {self._k} {other.format(self._k)} LIMIT 1"
        return db.execute(query).fetchone() is not None

    def _columns_of(self, db: sqlite3.Connection, keys: Sequence[PlainKey]) -> list[Any]:
        """Return keys as the table has them already, or as the column stores them."""
        if not self.shared:
            return [encode_key(key) for key in keys]
        if not self._is_mixed(db):
            return [self._require_column(key) for key in keys]
        there = {self._from_column(row[0]): row[0] for row in self._select_rows(db, keys, self._k)}
        return [there[key] if key in there else self._require_column(key) for key in keys]

    def _select_rows(
        self, db: sqlite3.Connection, keys: Sequence[PlainKey], columns: str
    ) -> list[Any]:
        rows: list[Any] = []
        forms = [form for key in keys for form in self._forms(key)]
        for batch in batches(forms, 500):
            marks = ", ".join("?" * len(batch))
            query = f"SELECT {columns} FROM {self._t} WHERE {self._k} IN ({marks})"
            rows += db.execute(query, batch).fetchall()
        # An integer is found where the column holds the same number as a float, too.
        return [row for row in rows if not isinstance(row[0], float)] if self.shared else rows

    def _read_keys(self, db: sqlite3.Connection) -> Iterator[list[Any]]:
        rows = db.execute(f"SELECT {self._k} FROM {self._t} WHERE {tables.is_key(self._k)}")
        while batch := rows.fetchmany(BATCH):
            yield [key for (key,) in batch]

    # The journal and the index.

    def _lock_journal(self, db: sqlite3.Connection) -> None:
        """Do nothing: the transaction already holds the write lock."""

    def _journaled(
        self, db: sqlite3.Connection, state: State, added: int, columns: list[Any]
    ) -> tuple[Collection[Any], str]:
        """Return which keys a write added or removed, by the journal, and the epoch after it.

        The epoch is the one before if a trigger of somebody else's changed other keys as well: the
        guard then learns of all changes from the journal.
        """
        last, token = db.execute(self._last_row).fetchone()
        if last == state.last:
            return (), state.epoch
        epoch = f"{last}.{token}"
        if not self.shared and last - state.last == len(columns):
            return columns, epoch  # all of them
        rows = db.execute(self._rows_after, (state.last,)).fetchall()
        changed = {key for key, _ in rows}
        if not self.shared:
            return changed, epoch
        if any(sign != added for _, sign in rows) or not changed.issubset(columns):
            self._catch_up(db, state.last, last)
            return changed.intersection(columns), state.epoch
        self._write_note(db, "indexed", b"%d" % last)
        return changed, epoch

    @staticmethod
    def _among(changed: Collection[Any], keys: Any, columns: list[Any]) -> tuple[Any, list[Any]]:
        """Return the keys, and their columns, that a write changed."""
        if changed is columns:
            return keys, columns
        kept = [i for i, column in enumerate(columns) if column in changed]
        return [keys[i] for i in kept], [columns[i] for i in kept]

    def _index_up_to(self, owner: str, rows: list[Any]) -> bool:
        if not self.shared:
            return True
        try:
            with self._writing(wait=False) as db:
                try:
                    state = self._read_state(db, owner)
                except LeaseError:
                    return True
                self._catch_up(db, state.indexed, rows[-1][0])
                return True
        except StoreError:
            return False

    def _update_index(
        self,
        db: sqlite3.Connection,
        added: Sequence[PlainKey],
        added_columns: Sequence[Any],
        removed: Sequence[PlainKey],
        removed_columns: Sequence[Any],
    ) -> None:
        for keys, columns, statement in (
            (removed, removed_columns, self._delete_hash),
            (added, added_columns, self._insert_hash),
        ):
            if keys:
                words = self._words(keys)
                if len(keys) > 1:  # neighbours in the index one after another
                    order = np.argsort(words[:, 0])
                    words, columns = words[order], [columns[i] for i in order.tolist()]
                db.executemany(
                    statement, zip(words[:, 0].tolist(), words[:, 1].tolist(), columns, strict=True)
                )


class _Reading:
    """A context with the connection for reads."""

    def __init__(self, store: SQLite) -> None:
        self._store = store
        # A database in memory has one connection.
        self._lock = store._lock if store._in_memory else store._read_lock

    def __enter__(self) -> sqlite3.Connection:
        store = self._store
        self._lock.acquire()
        try:
            if store._in_memory:
                return store._write_connection()
            if store._read_db is None:
                store._read_db = store._connect()
            return store._read_db
        except BaseException as error:
            self._lock.release()
            store._translate(error)
            raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._lock.release()
        if error is not None:
            self._store._translate(error)


class _Writing:
    """A context that runs in one transaction, which holds the write lock from the start.

    If it is not to wait for another writer, it raises `StoreError` instead.
    """

    def __init__(self, store: SQLite, wait: bool) -> None:
        self._store, self._wait = store, wait

    def __enter__(self) -> sqlite3.Connection:
        store = self._store
        if not store._lock.acquire(blocking=self._wait):
            raise StoreError(f"SQLite database {store._path!r} is busy")
        try:
            self._db = store._write_connection()
            if self._wait:
                self._db.execute("BEGIN IMMEDIATE")
                return self._db
            self._db.execute("PRAGMA busy_timeout = 0")
            try:
                self._db.execute("BEGIN IMMEDIATE")
            finally:
                self._db.execute(f"PRAGMA busy_timeout = {int(1000 * store._timeout)}")
            return self._db
        except BaseException as error:
            store._lock.release()
            store._translate(error)
            raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is None:
                self._db.execute("COMMIT")
        except BaseException as failed:
            error = failed
            raise
        finally:
            # Some errors, such as that of a full disk, end the transaction themselves.
            if error is not None and self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._store._lock.release()
            self._store._translate(error)


def _text(key: Any) -> str | None:
    try:
        return key.decode() if isinstance(key, bytes) else None
    except UnicodeDecodeError:
        return None
