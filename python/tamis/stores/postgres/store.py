"""`tamis.stores.Postgres`: a table in a PostgreSQL database (``pip install tamis[postgres]``).

A table that others write is followed without a lock (`shared.py`). A table of the guard's own has
the same further tables as in `tamis.stores.SQLite`: an index by hash, a journal that triggers
write, and metadata. Rows of this journal are numbered in the order of their commits: the guards,
which alone write the table, hold an advisory lock from before a number is drawn until the end of
the transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tamis._checks import check_int
from tamis.errors import StoreError
from tamis.stores.base import (
    BATCH,
    JOURNAL,
    Changes,
    Commit,
    Hasher,
    HashRows,
    PlainKey,
    Value,
    check_timeout,
    commit_of,
    lease_error,
    position_number,
)
from tamis.stores.connections import forget_after_fork, start_watching
from tamis.stores.encoding import SIGN, encode_values, from_signed
from tamis.stores.postgres import functions, tables
from tamis.stores.postgres.columns import Array, PostgresColumns, register_arrays
from tamis.stores.postgres.connections import Connections, connection_string, listen
from tamis.stores.postgres.functions import Call, Calls
from tamis.stores.postgres.reader import PostgresReader
from tamis.stores.postgres.shared import SharedTable
from tamis.stores.postgres.tables import release_lease, take_lease
from tamis.stores.sql.journaled import Journaled, State, is_broken
from tamis.stores.tail import MAX_TAIL

_MAX_BATCH = JOURNAL // 2
"""Keys that one call writes: the journal must not be trimmed of rows that the call returns."""


class Postgres(Journaled):
    """A table in a PostgreSQL database, version 14 or newer.

    By default it creates a table of its own, ``tamis``. To guard an existing table in place, pass
    ``table``, ``key`` and ``value``: the names of the table, with its schema or not, of its key
    column (unique; text, integers, bytea or uuid), or of several columns that are unique together,
    and of the column that `get` returns. A key of several columns is a tuple. ``where`` is a
    condition on the columns, such as ``"deleted IS NULL"``: rows that do not satisfy it are absent.
    It is one expression of SQL, code that the server runs: do not build it from the input of
    strangers. Others may continue to write to the table, and never wait for a guard. The role must
    own it, or its owner must have run the statements of `sql`.
    """

    _columns: PostgresColumns
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
        prepare: bool = True,
        install: bool = True,
    ) -> None:
        """Connect; ``conninfo`` is a libpq string such as ``"host=localhost dbname=shop"``.

        It may also be an engine of SQLAlchemy or a connection of Django, to whose database the
        store makes connections of its own.

        ``timeout`` is how many seconds to wait for the server; `None` waits as long as it takes.
        ``connections`` is how many threads can read at once; each needs a connection meanwhile.
        Pass ``prepare=False`` behind PgBouncer in transaction mode: the store then prepares no
        statements and changes no settings of a connection. ``install=False`` creates nothing: such
        a store is for `read_keys`, `sql`, `installed` and `unguard` of an existing table.
        """
        super().__init__(table, key, value, where)
        timeout = check_timeout(timeout)
        connections = check_int("connections", connections, 10**4, minimum=2)
        self._connections = Connections(connection_string(conninfo), connections, timeout, prepare)
        self._psycopg = self._connections.psycopg
        register_arrays(self._psycopg)
        self._lock = threading.RLock()
        self._install = install
        self._followed: SharedTable | None = None
        """The table that others write, if it is one."""
        # In statements with parameters.
        self._and_where = self._and_where.replace("%", "%%")
        try:
            self._create_tables()
        except BaseException:
            self.close()
            raise
        forget_after_fork(self)

    async def open_reader(self) -> PostgresReader | None:
        """Open a reader; a subclass that reads in another way has none."""
        if type(self).get_many is not Journaled.get_many:
            return None
        pool = self._connections.asynchronous_pool()
        await pool.open()
        return PostgresReader(self, pool)

    def put_many(
        self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str, since: str = ""
    ) -> Commit:
        """Write distinct keys and their values in one transaction."""
        if self._followed is not None:
            return self._followed.put_many(keys, values)
        columns = self._columns.to_columns(keys)
        calls = self._calls.put(columns, encode_values(values), _MAX_BATCH)
        return self._write(owner, since, keys, columns, True, calls)

    def delete_many(self, keys: Sequence[PlainKey], owner: str, since: str = "") -> Commit:
        """Delete distinct keys in one transaction."""
        if self._followed is not None:
            return self._followed.delete_many(keys)
        columns = self._columns.to_columns(keys)
        calls = self._calls.delete(columns, _MAX_BATCH)
        return self._write(owner, since, keys, columns, False, calls)

    def _write(
        self,
        owner: str,
        since: str,
        keys: Sequence[PlainKey],
        columns: list[Any],
        adding: bool,
        calls: list[Call],
    ) -> Commit:
        """Write as an owner, and return the result."""
        name = owner + self._owner_suffix
        with self._lock:
            if self._owner is not None and len(self._tail) >= MAX_TAIL:
                self._write_index(name)
            answers = self._retry(name, calls)
            last, token = answers[0][0][:2]
            before = f"{last}.{token}"
            rows = [row for answer in answers for row in answer[1:]]
            if not rows:
                return commit_of(keys, [adding] * len(columns), adding, since, before, before)
            listed = self._to_journal_rows(rows)
            # Rows of others are not in the tail if no guard has asked for them yet.
            if self._owner is not None and (is_broken(rows) or not self._tail.append(last, listed)):
                self._index_after_commit()
        changed = set(listed.columns)
        existed = [(column in changed) != adding for column in columns]
        if listed.added.count(adding) != len(rows) or not changed.issubset(columns):
            return Commit(existed, None)  # a trigger of the user changed other keys, too
        return commit_of(keys, existed, adding, since, before, listed.position)

    def _retry(self, owner: str, calls: list[Call]) -> list[list[Any]]:
        """Write; try again if that deadlocked with another writer, or nothing would log it.

        Return parts of the journal: the row before a write, and the rows of the write.
        """
        for attempt in range(5):
            try:
                return self._call(owner, calls)
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

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return a position and the keys at that position, from one read transaction."""
        if self._followed is not None:
            contents = self._followed.contents()
            self._columns = self._followed.columns  # their types may have changed
            return contents
        self._restore_log()
        db = self._connections.connect()
        try:
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            position = self._last_position(db)
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
        return position, parts

    def changes(self, since: str, limit: int | None = None) -> Changes | None:
        """Return the changes since a position, or `None` if they are unknown."""
        if self._followed is not None:
            return self._followed.changes(since, limit)
        return super().changes(since, limit)

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher; rebuild the index if it had another name."""
        if self._followed is not None:
            self._followed.attach((owner + self._owner_suffix).encode(), hasher, name)
        else:
            super().attach(owner, hasher, name)

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return `run` of each range."""
        return self._followed.runs(ranges) if self._followed else super().runs(ranges)

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        return self._followed.scan() if self._followed else super().scan()

    def _read_runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        if not ranges:
            return []
        query = f"SELECT hi, lo FROM {self._t_hash} WHERE hi BETWEEN %s AND %s"
        with self._reading() as db, self._connections.pipeline(db):
            cursors = [db.execute(query, (lo - SIGN, hi - SIGN)) for lo, hi in ranges]
            return [from_signed(cursor.fetchall()) for cursor in cursors]

    def _scan_index(self) -> Iterator[HashRows]:
        query = f"SELECT hi, lo FROM {self._t_hash} {{}} ORDER BY hi, lo LIMIT {BATCH}"
        first, later = query.format(""), query.format("WHERE (hi, lo) > (%s, %s)")
        with self._reading() as db:
            rows = db.execute(first).fetchall()
        while rows:
            yield from_signed(rows)
            with self._reading() as db:
                rows = db.execute(later, rows[-1]).fetchall()

    def watch(self, wake: Callable[[], None]) -> Callable[[], None] | None:
        """Call ``wake`` when keys have changed, and after each new connection to the server.

        Writers of a table that is not the guard's own signal nothing.
        """
        if self._followed is not None:
            return None

        def listen_until(ended: threading.Event) -> None:
            listen(self._connections, tables.channel(self._table), wake, ended)

        return start_watching("tamis-postgres-watch", listen_until)

    # The lease.

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, unless another guard may rely on it."""
        name = (owner + self._owner_suffix).encode()
        with self._reading() as db, self._connections.pipeline(db), db.transaction():
            rollback = self._psycopg.Rollback
            return take_lease(db, rollback, self._t_meta, name, seconds, self._watched)
        return False  # rolled back: the lease had changed

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        try:
            with self._reading() as db:
                release_lease(db, self._t_meta, (owner + self._owner_suffix).encode())
        except StoreError as error:
            # After `unguard` elsewhere there is no lease.
            if not isinstance(error.__cause__, self._psycopg.errors.UndefinedTable):
                raise

    def unguard(self) -> None:
        """Drop the guard's tables and triggers, keep the guarded table, and close the store."""
        if self._followed is not None:
            self._followed.unguard()
        else:
            with self._writing() as db:
                functions.drop(db, self._schema, self._table)
                tables.drop(db, self._schema, self._base)
        self.close()

    def sql(self, role: str) -> list[str]:
        """Return the statements that install all that follows an existing table, and the rights.

        The last statements grant a role the rights that a guard needs if the table's owner runs all
        of them.
        """
        return self._existing("sql()").sql(role)

    @property
    def installed(self) -> bool:
        """Whether the guard's tables exist."""
        return self._existing("installed").installed

    def read_keys(self) -> Iterator[list[Any]]:
        """Iterate over the keys, in batches, from one snapshot; nothing is written."""
        return self._existing("read_keys()").read_keys()

    def _existing(self, what: str) -> SharedTable:
        if self._followed is None:
            raise ValueError(f"{what} is about an existing table: pass table, key and value")
        return self._followed

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def forget_connections(self) -> object:
        """Open new connections in a forked child."""
        self._lock = threading.RLock()
        self._become_child()
        if self._followed is not None:
            self._followed.forget()
        return self._connections.forget()

    # Connections and transactions.

    def _reading(self) -> AbstractContextManager[Any]:
        return self._connections.lend()

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        pipeline = self._connections.pipeline
        with self._lock, self._connections.lend() as db, pipeline(db), db.transaction():
            yield db

    # Tables and keys.

    def _create_tables(self) -> None:
        """Create the guard's tables, unless they are there."""
        with self._reading() as db:
            if self.shared:
                tables.check_encoding(db)
            self._schema, self._table = tables.find_table(db, self._table, self.shared)
            self._name_tables(self._schema, self._table)
            tables.check_name(self._table, self._base)
            exists = db.execute("SELECT to_regclass(%s) IS NOT NULL", (self._t_meta,)).fetchone()[0]
            if exists and self._install:
                self._check_definition(db)
        if self.shared:
            self._follow_table()
        else:
            self._create_own_table(exists)

    def _follow_table(self) -> None:
        names = self._schema, self._table, self._base
        self._followed = SharedTable(
            self._connections,
            names,
            self._keys,
            self._value,
            self._where,
            self._check_columns,
            self._install,
        )
        self._columns = self._followed.columns
        if self._install:
            with self._reading() as db:
                self._check_definition(db)

    def _create_own_table(self, exists: bool) -> None:
        self._columns = PostgresColumns(self._keys, ["bytea"], own=True)
        self._journal_lock = f"SELECT {tables.advisory_lock(self._table)}"
        self._logged = f"SELECT {tables.logged(self._schema, self._base, self._table)}"
        self._calls = Calls(self._schema, self._table)
        if exists:
            return
        with self._lock, self._connections.lend() as db, db.transaction():
            self._lock_journal(db)
            db.execute(f"CREATE TABLE IF NOT EXISTS {self._t} (key bytea PRIMARY KEY, value bytea)")
            self._create_log(db)
            functions.create(db, self._schema, self._table)

    def _create_log(self, db: Any) -> None:
        tables.create(db, self._schema, self._base, self._table)

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
        key = self._columns.expression
        return f"SELECT {key}, {value} FROM {self._t} WHERE {matches}{self._and_where}", arrays

    def _select_rows(self, db: Any, keys: Sequence[PlainKey], value: str) -> list[Any]:
        selection = self._selection(keys, value)
        return [] if selection is None else self._connections.fetch(db, *selection)

    def _read_keys(self, db: Any) -> Iterator[list[Any]]:
        # Not a cursor of the server, which cannot be used in a pipeline.
        query = f"SELECT key FROM {self._t} {{}} ORDER BY key LIMIT {BATCH}"
        first, later = query.format(""), query.format("WHERE key > %s")
        rows = db.execute(first, ()).fetchall()
        while rows:
            yield [key for (key,) in rows]
            rows = db.execute(later, rows[-1]).fetchall()

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
            position = self._last_position(db)
            state = State(position, position_number(position))
            self._catch_up(db, state)
        self._tail.drop(state.last)
        return True

    def _update_index(
        self, db: Any, added: Sequence[PlainKey], removed: Sequence[PlainKey]
    ) -> None:
        rows = "unnest(%b::bigint[], %b::bigint[]) AS new (hi, lo)"
        for keys, statement in (
            (
                removed,
                f"DELETE FROM {self._t_hash} AS old USING {rows} "
                "WHERE (old.hi, old.lo) = (new.hi, new.lo)",
            ),
            (added, f"INSERT INTO {self._t_hash} SELECT * FROM {rows} ON CONFLICT DO NOTHING"),
        ):
            if keys:
                words = self._words(keys)
                db.execute(statement, (Array("bigint", words[:, 0]), Array("bigint", words[:, 1])))


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
