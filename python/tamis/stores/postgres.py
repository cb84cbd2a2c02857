"""`tamis.stores.Postgres`: a table in a PostgreSQL database (``pip install tamis[postgres]``).

The guard's tables are the same as in `tamis.stores.SQLite`: an index by hash, a journal that
triggers write, and metadata. Rows of the journal must be numbered in the order of their commits, or
a reader would miss a row that is committed late. So every writer holds an advisory lock from before
a number is drawn until the end of the transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from tamis._checks import check_int
from tamis.errors import StoreError
from tamis.stores import _fork
from tamis.stores import _postgres_arrays as arrays
from tamis.stores import _postgres_functions as functions
from tamis.stores import _postgres_tables as tables
from tamis.stores._composite import pack
from tamis.stores._encoding import SIGN, encode_values, from_signed
from tamis.stores._engines import postgres_conninfo
from tamis.stores._keyvalue import epoch_number, lost_epoch
from tamis.stores._postgres_arrays import Array
from tamis.stores._postgres_columns import PostgresColumns
from tamis.stores._postgres_connections import Connections, listen
from tamis.stores._postgres_functions import Call, Calls
from tamis.stores._postgres_lease import release_lease, take_lease
from tamis.stores._sql import Journaled, State, is_broken
from tamis.stores._tail import MAX_TAIL
from tamis.stores._watch import start_watching
from tamis.stores.contract import (
    BATCH,
    JOURNAL,
    Commit,
    HashRows,
    PlainKey,
    Value,
    attach_error,
    batches,
    check_timeout,
    lease_error,
)

_MAX_BATCH = JOURNAL // 2
"""Keys that one call writes: the journal must not be trimmed of rows that the call returns."""


class Postgres(Journaled):
    """A table in a PostgreSQL database, version 14 or newer.

    By default it creates a table of its own, ``tamis``. To guard an existing table in place, pass
    ``table``, ``key`` and ``value``: the names of the table, with its schema or not, of its key
    column (unique; text, integers, bytea or uuid), or of several columns that are unique together,
    and of the column that `get` returns. A key of several columns is a tuple. ``where`` is a
    condition on the columns, such as ``"deleted IS NULL"``: rows that do not satisfy it are absent.
    Others may continue to write to the table.
    """

    _param = "%s"
    _share_row, _lock_row = " FOR SHARE", " FOR UPDATE"

    def __init__(
        self,
        conninfo: str | Any,
        *,
        table: str | None = None,
        key: str | Sequence[str] | None = None,
        value: str | None = None,
        where: str | None = None,
        timeout: float | None = 30.0,
        connections: int = 8,
    ) -> None:
        """Connect; ``conninfo`` is a libpq string such as ``"host=localhost dbname=shop"``.

        It may also be an engine of SQLAlchemy or a connection of Django, to whose database the
        store makes connections of its own.

        ``timeout`` is how many seconds to wait for the server; `None` waits as long as it takes.
        ``connections`` is how many threads can read at once; each needs a connection meanwhile.
        """
        super().__init__(table, key, value, where)
        timeout = check_timeout(timeout)
        connections = check_int("connections", connections, 10**4, least=2)
        self._connections = Connections(postgres_conninfo(conninfo), connections, timeout)
        self._psycopg = self._connections.psycopg
        arrays.register(self._psycopg)
        self._lock = threading.RLock()
        # In statements with parameters.
        self._and_where = self._and_where.replace("%", "%%")
        try:
            self._create_tables()
        except BaseException:
            self.close()
            raise
        _fork.register(self)

    def put_many(self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys and their values in one transaction."""
        columns = self._columns.to_columns(keys)
        if None in columns:
            self._columns.require_column(keys[columns.index(None)], self._table)
        stored = list(values) if self.shared else encode_values(values)
        if self._functions and self._calls.take(stored):
            calls = self._calls.put(columns, stored, _MAX_BATCH)
            return self._write(owner, columns, True, lambda name: self._call(name, calls))
        rows = [*zip(keys, columns, stored, strict=True)]
        return self._write(
            owner, columns, True, lambda name: self._run(name, rows, self._insert_rows)
        )

    def delete_many(self, keys: Sequence[PlainKey], owner: str) -> Commit:
        """Delete distinct keys in one transaction."""
        columns = self._columns.to_columns(keys)
        held = [column for column in columns if column is not None]
        if self._functions:
            calls = self._calls.delete(held, _MAX_BATCH)
            return self._write(owner, columns, False, lambda name: self._call(name, calls))
        return self._write(
            owner, columns, False, lambda name: self._run(name, held, self._delete_rows)
        )

    def _insert_rows(self, db: Any, rows: Sequence[tuple[PlainKey, Any, Any]]) -> None:
        marks = ", ".join(["%s"] * (len(self._keys) + 1))
        db.cursor().executemany(
            f"INSERT INTO {self._t} ({self._k}, {self._v}) VALUES ({marks}) "
            f"ON CONFLICT ({self._k}) DO UPDATE SET {self._v} = excluded.{self._v}",
            [(*self._columns.row_key(column), value) for _, column, value in rows],
        )
        if self._where:
            keys = [key for key, _, _ in rows]
            found = self._select_rows(db, keys, "NULL")
            self._check_written(keys, {self._columns.from_column(key) for key, _ in found})

    def _delete_rows(self, db: Any, columns: Sequence[Any]) -> None:
        matches, arrays = self._columns.among(list(columns))
        db.execute(f"DELETE FROM {self._t} WHERE {matches}{self._and_where}", arrays)

    def _write(
        self,
        owner: str,
        columns: list[Any],
        adding: bool,
        write: Callable[[str], list[list[Any]]],
    ) -> Commit:
        """Write as an owner, and return the result.

        ``write`` returns parts of the journal: the row before a write, and the rows of the write.
        """
        name = owner + self._owner_suffix
        if self._hasher is None:
            raise attach_error()
        with self._lock:
            if len(self._tail) >= MAX_TAIL:
                self._write_index(name)
            answers = self._retry(write, name)
            before, token = answers[0][0][:2]
            rows = [row for answer in answers for row in answer[1:]]
            if not rows:
                epoch = f"{before}.{token}"
                return Commit([adding] * len(columns), epoch, epoch)
            listed = self._to_journal_rows(rows)
            # Rows of others are not in the tail if no guard has asked for them yet.
            if is_broken(rows) or not self._tail.append(before, listed):
                self._index_after_commit()
        epoch = after = f"{before}.{token}"
        changed = set(listed.columns)
        # A trigger of the user may have changed other keys, or the same in other ways. Then
        # the epoch remains the one before: the guard learns of all changes from the journal.
        if listed.added.count(adding) == len(rows) and changed.issubset(columns):
            after = listed.epoch
        return Commit([(column in changed) != adding for column in columns], epoch, after)

    def _retry(self, write: Callable[[str], list[list[Any]]], name: str) -> list[list[Any]]:
        """Write; try again if that deadlocked with another writer, or nothing would log it."""
        for attempt in range(5):
            try:
                return write(name)
            except _NotLoggedError:
                self._restore_log()
            except StoreError as error:
                if attempt == 4 or not isinstance(
                    error.__cause__, self._psycopg.errors.DeadlockDetected
                ):
                    raise
        raise StoreError(
            f"{self._connections.where} loses the triggers on {self._table!r} again and again"
        )

    def _call(self, owner: str, calls: list[Call]) -> list[list[Any]]:
        """Call functions that write, in one transaction."""
        name = owner.encode()
        with self._connections.lend() as db:
            if len(calls) == 1:
                call, rest = calls[0]
                return [_checked(db.execute(call, (name, *rest), binary=True))]
            with db.transaction():
                return [
                    _checked(db.execute(call, (name, *rest), binary=True)) for call, rest in calls
                ]

    def _run(
        self, owner: str, rows: Sequence[Any], write: Callable[[Any, Sequence[Any]], None]
    ) -> list[list[Any]]:
        """Write rows by statements, in one transaction."""
        answers = []
        journal = (
            f"SELECT seq, token, key, added FROM {self._t_journal} WHERE seq > %s ORDER BY seq"
        )
        with self._writing() as db:
            self._lock_journal(db)
            for part in batches(rows, _MAX_BATCH) if rows else [[]]:
                state = self._read_state(db, owner)
                if not self._is_logged(db):
                    raise _NotLoggedError
                write(db, part)
                token = state.epoch.partition(".")[2]
                answers.append(
                    [(state.last, token), *db.execute(journal, (state.last,)).fetchall()]
                )
        return answers

    def epoch(self) -> str:
        """Return the current epoch, which is the last row of the journal; lost without triggers."""
        with self._reading() as db:
            *row, logged = db.execute(self._epoch_query).fetchone()
        return f"{row[0]}.{row[1]}" if logged else lost_epoch()

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys at that epoch, in batches, from one read transaction."""
        self._restore_log()
        db = self._connections.connect()
        try:
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            epoch = self._last_epoch(db)
        except BaseException as error:
            db.close()
            self._connections.translate(error)
            raise

        def read() -> Iterator[list[Any]]:
            try:
                yield []  # so that the connection is closed even if nobody reads on
                for part in self._read_keys(db):
                    yield self._columns.from_columns(part)
            except self._psycopg.Error as error:
                self._connections.translate(error)
                raise
            finally:
                db.close()

        parts = read()
        next(parts)
        return epoch, parts

    def _read_runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        if not ranges:
            return []
        query = f"SELECT hi, lo FROM {self._t_hash} WHERE hi BETWEEN %s AND %s"
        with self._reading() as db, self._pipeline(db):
            cursors = [db.execute(query, (lo - SIGN, hi - SIGN)) for lo, hi in ranges]
            return [from_signed(cursor.fetchall()) for cursor in cursors]

    def _scan_index(self) -> Iterator[HashRows]:
        query = f"SELECT hi, lo, key FROM {self._t_hash} {{}} ORDER BY hi, lo, key LIMIT {BATCH}"
        first, later = query.format(""), query.format("WHERE (hi, lo, key) > (%s, %s, %s)")
        with self._reading() as db:
            rows = db.execute(first).fetchall()
        while rows:
            yield from_signed([row[:2] for row in rows])
            with self._reading() as db:
                rows = db.execute(later, rows[-1]).fetchall()

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` when keys have changed, and after each new connection to the server."""

        def listen_until(ended: threading.Event) -> None:
            listen(self._connections, tables.channel(self._table), wake, ended)

        return start_watching("tamis-postgres-watch", listen_until)

    # The lease.

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, unless another guard may rely on it."""
        name = (owner + self._owner_suffix).encode()
        with self._reading() as db, self._pipeline(db), db.transaction():
            rollback = self._psycopg.Rollback
            return take_lease(db, rollback, self._t_meta, name, seconds, self._watched)
        return False  # rolled back: the lease had changed

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        with self._reading() as db:
            release_lease(db, self._t_meta, (owner + self._owner_suffix).encode())

    def unguard(self) -> None:
        """Drop the guard's tables and triggers, keep the guarded table, and close the store."""
        with self._writing() as db:
            if self._functions:
                functions.drop(db, self._schema, self._table)
            tables.drop(db, self._schema, self._base, self._table)
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def forget_connections(self) -> object:
        """Open new connections in a forked child."""
        self._lock = threading.RLock()
        self._become_child()
        return self._connections.forget()

    # Connections and transactions.

    def _reading(self) -> AbstractContextManager[Any]:
        return self._connections.lend()

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        with self._lock, self._connections.lend() as db, self._pipeline(db), db.transaction():
            yield db

    def _pipeline(self, db: Any) -> AbstractContextManager[Any]:
        """Return a context in which statements are sent without waiting for each other."""
        supported = self._psycopg.Pipeline.is_supported()
        pipeline: AbstractContextManager[Any] = db.pipeline() if supported else nullcontext()
        return pipeline

    # Tables and keys.

    def _create_tables(self) -> None:
        """Create the tables and triggers, unless they are there: that would wait for writers."""
        with self._reading() as db:
            self._schema, self._table = tables.find_table(db, self._table, self.shared)
            self._name_tables(self._schema, self._table)
            tables.check_name(self._table, self._base)
            self._journal_lock = f"SELECT {tables.advisory_lock(self._table)}"
            types, value_type = ["bytea"], "bytea"
            if self.shared:
                columns = tables.columns_of(db, self._t)
                self._check_columns(columns)
                tables.check_keys(db, self._t, self._keys, columns)
                types = [columns[key] for key in self._keys]
                value_type = columns[self._value]
                self.translates_keys = len(self._keys) > 1 or types == ["uuid"]
            self._columns: PostgresColumns = PostgresColumns(self._keys, types, own=not self.shared)
            self._type = self._columns.type
            self._logged = f"SELECT {tables.logged(self._schema, self._base, self._table)}"
            self._epoch_query = (
                f"SELECT seq, token, {tables.logged(self._schema, self._base, self._table)} "
                f"FROM {self._t_journal} ORDER BY seq DESC LIMIT 1"
            )
            self._functions = len(self._keys) == 1 and not self._where
            column_types = f"{self._type} {value_type}".encode() if self._functions else None
            self._calls = Calls(self._schema, self._table, self._type)
            exists = db.execute("SELECT to_regclass(%s) IS NOT NULL", (self._t_meta,)).fetchone()[0]
            if exists and self._read_metadata(db, "functions") == column_types:
                self._check_definition(db)
                return
            if self._where:
                tables.check_condition(db, self._psycopg.Error, self._t, self._where)
        with self._lock, self._connections.lend() as db, db.transaction():
            self._lock_journal(db)
            if not self.shared:
                db.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._t} (key bytea PRIMARY KEY, value bytea)"
                )
            if not exists:
                self._create_log(db)
            self._check_definition(db)
            if column_types is not None:
                # There may be functions already, for columns of other types.
                functions.drop(db, self._schema, self._table)
                key, value = (self._keys[0], self._type), (self._value, value_type)
                functions.create(db, self._schema, self._table, key, value)
                self._write_metadata(db, "functions", column_types)

    def _create_log(self, db: Any) -> None:
        tables.create(
            db, self._schema, self._base, self._table, self._keys, self._columns.types, self._where
        )

    def _is_logged(self, db: Any) -> bool:
        return bool(db.execute(self._logged).fetchone()[0])

    _quote = staticmethod(tables.quote)

    def _selection(self, keys: Sequence[PlainKey], value: str) -> tuple[str, list[Any]] | None:
        """Return the query of the rows with one of ``keys`` and its parameters, if there are any.

        It returns the key, as the index has it, and a value.
        """
        held = [column for key in keys if (column := self._columns.to_column(key)) is not None]
        if not held:
            return None
        matches, arrays = self._columns.among(held)
        key = tables.packed(self._keys, self._columns.types)
        return f"SELECT {key}, {value} FROM {self._t} WHERE {matches}{self._and_where}", arrays

    def _select_rows(self, db: Any, keys: Sequence[PlainKey], value: str) -> list[Any]:
        selection = self._selection(keys, value)
        return [] if selection is None else list(db.execute(*selection).fetchall())

    def _read_keys(self, db: Any) -> Iterator[list[Any]]:
        # Not a cursor of the server, which cannot be used in a pipeline.
        present = " AND ".join(f"{self._quote(key)} IS NOT NULL" for key in self._keys)
        first = f"SELECT {self._k} FROM {self._t} WHERE {present}{self._and_where}"
        after = f" AND ({self._k}) > ({', '.join(['%s'] * len(self._keys))})"
        order = f" ORDER BY {self._k} LIMIT {BATCH}"
        rows = db.execute(first + order, ()).fetchall()
        while rows:
            if len(self._keys) == 1:
                yield [key for (key,) in rows]
            else:
                yield [pack([self._columns.from_part(part) for part in row]) for row in rows]
            rows = db.execute(first + after + order, rows[-1]).fetchall()

    # The journal and the index.

    def _lock_journal(self, db: Any) -> None:
        db.execute(self._journal_lock)

    def _index_now(self, owner: str) -> bool:
        with self._reading() as db, db.transaction():
            query = f"SELECT value FROM {self._t_meta} WHERE name = %s FOR {{}} SKIP LOCKED"
            if db.execute(query.format("UPDATE"), ("indexed",)).fetchone() is None:
                return False  # it is being updated, which may wait for others
            holder = db.execute(query.format("SHARE"), ("lease",)).fetchone()
            if holder is None or bytes(holder[0]) != owner.encode():
                self._owner = None
                return True
            epoch = self._last_epoch(db)
            state = State(epoch, epoch_number(epoch))
            self._catch_up(db, state)
        self._tail.drop(state.last)
        return True

    def _update_index(
        self,
        db: Any,
        added: Sequence[PlainKey],
        added_columns: Sequence[Any],
        removed: Sequence[PlainKey],
        removed_columns: Sequence[Any],
    ) -> None:
        rows = f"unnest(%b::bigint[], %b::bigint[], %b::{self._type}[]) AS new (hi, lo, key)"
        for keys, columns, statement in (
            (
                removed,
                removed_columns,
                f"DELETE FROM {self._t_hash} AS old USING {rows} "
                "WHERE (old.hi, old.lo, old.key) = (new.hi, new.lo, new.key)",
            ),
            (
                added,
                added_columns,
                f"INSERT INTO {self._t_hash} SELECT * FROM {rows} ON CONFLICT DO NOTHING",
            ),
        ):
            if keys:
                words = self._words(keys)
                hashes = Array("bigint", words[:, 0]), Array("bigint", words[:, 1])
                db.execute(statement, (*hashes, Array(self._type, columns)))


class _NotLoggedError(Exception):
    """Nothing was written, because the triggers that write the journal are missing."""


def _checked(cursor: Any) -> list[Any]:
    """Return the rows of a function that writes; `LeaseError` if it did not."""
    rows: list[Any] = cursor.fetchall()
    if rows[0][0] == functions.NOT_LOGGED:
        raise _NotLoggedError
    if rows[0][0] < 0:
        raise lease_error(None if rows[0][0] == functions.NOT_HELD else "")
    return rows
