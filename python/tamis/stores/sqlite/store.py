"""`tamis.stores.SQLite`: a table in an SQLite database, an existing one or the guard's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from tamis._types import FilePath
from tamis.errors import LeaseError, StoreError
from tamis.stores.base import (
    BATCH,
    Commit,
    HashRows,
    PlainKey,
    Value,
    batches,
    check_timeout,
    commit_of,
    position_number,
    schema_error,
)
from tamis.stores.connections import forget_after_fork
from tamis.stores.encoding import SIGN, encode_values, from_signed
from tamis.stores.sql.journaled import Journaled, State
from tamis.stores.sqlite import tables
from tamis.stores.sqlite.columns import SQLiteColumns
from tamis.stores.sqlite.connections import Connections, Reading, Writing, database_path
from tamis.stores.sqlite.own_table import JOURNAL_COLUMNS, OwnTable, read_journal
from tamis.stores.sqlite.tables import release_lease, take_lease
from tamis.stores.tail import MAX_TAIL, JournalRows


class SQLite(Journaled):
    """A table in an SQLite database.

    By default it creates a table of its own. To guard an existing table in place, pass ``table``,
    ``key`` and ``value``: the names of the table, of its key column (unique; text, integers or
    blobs), or of several columns that are unique together, and of the column that `get` returns. A
    key of several columns is a tuple. ``where`` is a condition on the columns, such as
    ``"deleted IS NULL"``: rows that do not satisfy it are absent. It is one expression of SQL, code
    that the database runs: do not build it from the input of strangers. Other programs may continue
    to write to that table, with or without tamis.

    >>> import tamis
    >>> with tamis.Guard(SQLite(":memory:"), tamis.Bloom(capacity=1000, fpr=0.01)) as g:
    ...     g.put("ada", "1815")
    ...     g.get("ada"), g.get("alan")
    ('1815', None)
    """

    _param = "?"

    def __init__(
        self,
        path: FilePath | Any,
        *,
        table: str | None = None,
        key: str | Sequence[str] | None = None,
        value: str | None = None,
        where: str | None = None,
        timeout: float | None = 30.0,
        install: bool = True,
    ) -> None:
        """Open the database; ``timeout`` is how many seconds to wait for a writer's lock.

        ``path`` may also be an engine of SQLAlchemy or a connection of Django, whose file is opened
        once more. ``install=False`` creates nothing: such a store is for `read_keys`, `sql`,
        `installed` and `unguard` of an existing table.
        """
        if isinstance(table, str):
            table = table.removeprefix("main.")
        super().__init__(table, key, value, where)
        self._logs_all = not self.shared
        self._own = OwnTable(self._t, self._t_journal)
        if not self.shared:
            self._journal_columns = JOURNAL_COLUMNS
        timeout = check_timeout(timeout)
        wait = 1e6 if timeout is None else timeout
        self._connections = Connections(database_path(path), wait, wal=not self.shared)
        k, v = self._k, self._v
        placeholders = ", ".join("?" * len(self._keys))
        self._upsert = (
            f"INSERT INTO {self._t} ({k}, {v}) VALUES ({placeholders}, ?) "
            f"ON CONFLICT ({k}) DO UPDATE SET {v} = excluded.{v}"
        )
        self._last_row = f"SELECT seq, token FROM {self._t_journal} ORDER BY seq DESC LIMIT 1"
        self._rows_after = (
            f"SELECT seq, token, key, added FROM {self._t_journal} WHERE seq > ? ORDER BY seq"
        )
        self._logged_version: int | None = None
        """The latest version of the schema that is known to have the triggers."""
        self._insert_hash = f"INSERT INTO {self._t_hash} VALUES (?, ?) ON CONFLICT DO NOTHING"
        self._delete_hash = f"DELETE FROM {self._t_hash} WHERE hi = ? AND lo = ?"
        try:
            with self._writing() if install else self._reading() as db:
                self._check_table(db)
                if install:
                    self._create_tables(db)
        except BaseException:
            self.close()
            raise
        self._delete = f"DELETE FROM {self._t} WHERE {self._columns.match()}{self._and_where}"
        forget_after_fork(self)

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        if not keys:
            return []
        # Without the context of other reads, as this is the most frequent call of a guard.
        connections = self._connections
        try:
            with connections.lock if connections.in_memory else connections.read_lock:
                rows = self._select_rows(connections.reader(), keys, self._v)
        except sqlite3.DatabaseError as error:
            connections.translate(error)
            raise
        return self._values_of(keys, rows)

    def put_many(
        self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str, since: str = ""
    ) -> Commit:
        """Write distinct keys and their values in one transaction."""
        stored = values if self.shared else encode_values(values)
        with self._connections.lock:
            self._index_if_due(owner)
            with self._writing() as db:
                state = self._begin_write(db, owner)
                columns = self._columns_of(db, keys)
                if not self.shared:
                    written = _packed(self._own.put(db, columns, stored, state.last), state)
                else:
                    rows: Any = zip(columns, stored, strict=True)
                    if len(self._keys) > 1:
                        rows = ((*self._columns.row_key(column), value) for column, value in rows)
                    written = self._write(db, self._upsert, rows, state, columns, True)
                    self._check_where(db, keys)
            self._append_to_tail(written, state)
        existed = [False] * len(keys)
        if len(written.changed) < len(columns):
            new = set(written.changed)
            existed = [column not in new for column in columns]
        return _commit(keys, existed, True, since, state, written)

    def delete_many(self, keys: Sequence[PlainKey], owner: str, since: str = "") -> Commit:
        """Delete distinct keys in one transaction."""
        with self._connections.lock:
            self._index_if_due(owner)
            with self._writing() as db:
                state = self._begin_write(db, owner)
                given, forms = keys, self._columns.to_columns(keys)
                mixed = self._columns.are_mixed(db, self._t)
                if mixed or None in forms:
                    forms_of = self._columns.forms if mixed else self._columns.only_form
                    pairs = [(key, form) for key in keys for form in forms_of(key)]
                    given, forms = [key for key, _ in pairs], [form for _, form in pairs]
                if not self.shared:
                    written = _packed(self._own.delete(db, forms, state.last), state)
                else:
                    rows = self._columns.row_keys(forms)
                    written = self._write(db, self._delete, rows, state, forms, False)
            self._append_to_tail(written, state)
        existed = [True] * len(keys)
        if not len(written.changed) == len(forms) == len(keys):
            changed = set(written.changed)
            gone = {key for key, form in zip(given, forms, strict=True) if form in changed}
            existed = [key in gone for key in keys]
        return _commit(keys, existed, False, since, state, written)

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return a position and the keys at that position, from one read transaction."""
        self._restore_log()
        if self._connections.in_memory:
            with self._reading() as db:
                keys = [k for part in self._read_keys(db) for k in self._columns.from_columns(part)]
                return self._last_position(db), batches(keys)
        db = self._connections.connect()
        try:
            db.execute("BEGIN")
            position = self._last_position(db)
        except BaseException as error:
            db.close()
            self._connections.translate(error)
            raise

        def read() -> Iterator[list[Any]]:
            with closing(db):
                yield []  # so that the connection is closed even if nobody reads on
                try:
                    for part in self._read_keys(db):
                        yield self._columns.from_columns(part)
                except sqlite3.DatabaseError as error:
                    self._connections.translate(error)
                    raise

        parts = read()
        next(parts)
        return position, parts

    def _read_runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        query = f"SELECT hi, lo FROM {self._t_hash} WHERE hi BETWEEN ? AND ?"
        with self._reading() as db:
            return [
                from_signed(db.execute(query, (lo - SIGN, hi - SIGN)).fetchall())
                for lo, hi in ranges
            ]

    def _scan_index(self) -> Iterator[HashRows]:
        query = f"SELECT hi, lo FROM {self._t_hash} {{}} ORDER BY hi, lo LIMIT {BATCH}"
        first, later = query.format(""), query.format("WHERE (hi, lo) > (?, ?)")
        with self._reading() as db:
            rows = db.execute(first).fetchall()
        while rows:
            yield from_signed(rows)
            with self._reading() as db:
                rows = db.execute(later, rows[-1]).fetchall()

    def change_token(self) -> object:
        """Return SQLite's counter of commits by other connections, which include the writer's."""
        if self._connections.in_memory:
            with self._reading() as db:
                return db.total_changes
        # Without the context of other reads: a strict guard calls this before each "no".
        connections = self._connections
        try:
            with connections.read_lock:
                db = connections.reader()
                return connections.opened, db.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.DatabaseError as error:
            connections.translate(error)
            raise

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, unless another guard may rely on it."""
        name = (owner + self._owner_suffix).encode()
        with self._writing() as db:
            return take_lease(db, self._t_meta, name, seconds, self._watched)

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        with self._writing() as db:
            release_lease(db, self._t_meta, (owner + self._owner_suffix).encode())

    def unguard(self) -> None:
        """Drop the guard's tables and triggers, keep the guarded table, and close the store."""
        with self._writing() as db:
            tables.drop(db, self._base)
        self.close()

    def sql(self, role: str | None = None) -> list[str]:
        """Return the statements that install all that follows an existing table.

        SQLite has no roles: whoever can write to the file can run them.
        """
        if not self.shared:
            raise ValueError("sql() is about an existing table: pass table, key and value")
        with self._reading() as db:
            created = db.execute(
                "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL "
                "AND type IN ('table', 'index') ORDER BY type DESC",
                (self._table,),
            ).fetchall()
        statements: list[str] = []
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
            for (statement,) in created:
                copy.execute(statement)
            copy.set_trace_callback(statements.append)
            self._create_tables(copy)
            copy.set_trace_callback(None)
        return [each for each in statements if not each.startswith(("SELECT", "PRAGMA", "--"))]

    @property
    def installed(self) -> bool:
        """Whether the guard's tables exist."""
        name = (f"{self._base}_meta",)
        with self._reading() as db:
            found = db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", name)
            return found.fetchone() is not None

    def read_keys(self) -> Iterator[list[Any]]:
        """Iterate over the keys, in batches, from one snapshot; nothing is written."""
        with closing(self._connections.connect()) as db:
            db.execute("BEGIN")
            for part in self._read_keys(db):
                yield self._columns.from_columns(part)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def forget_connections(self) -> object:
        """Reopen the database in a forked child; a database in memory is a copy of its own."""
        self._become_child()
        if self._connections.in_memory:
            self._connections.renew_locks()
            return None
        return self._connections.forget()

    # Connections and transactions.

    def _reading(self) -> Reading:
        return Reading(self._connections)

    def _writing(self, wait: bool = True) -> Writing:
        return Writing(self._connections, wait)

    def _index_if_due(self, owner: str) -> None:
        if self._owner is not None and len(self._tail) >= MAX_TAIL:
            self._write_index(owner + self._owner_suffix)

    def _begin_write(self, db: sqlite3.Connection, owner: str) -> State:
        """Check the triggers, and the lease if it is needed; return the state before the write."""
        if not self._is_logged(db):
            self._log_again(db)
        if self.shared:
            position = self._last_position(db)
            return State(position, position_number(position))
        return self._read_state(db, owner + self._owner_suffix)

    # Tables.

    def _check_table(self, db: sqlite3.Connection) -> None:
        """Check an existing table, and learn the types of its keys."""
        types: list[str] = ["blob"]
        uuids: list[str | None] = [None]
        if self.shared:
            columns = tables.table_columns(db, self._table)
            self._check_columns(columns)
            tables.check_unique(db, self._table, self._keys, columns)
            tables.check_encoding(db, self._table, self._keys)
            types = [tables.key_type(key, columns) for key in self._keys]
            uuids = [tables.uuid_form(columns[key][0]) for key in self._keys]
            if self._where:
                tables.check_condition(db, self._table, self._where)
        self._columns: SQLiteColumns = SQLiteColumns(self._keys, types, uuids, own=not self.shared)

    def _create_tables(self, db: sqlite3.Connection) -> None:
        """Create the tables and triggers that do not exist yet."""
        if not self.shared:
            db.execute(
                f"CREATE TABLE IF NOT EXISTS {self._t} (key BLOB PRIMARY KEY, value BLOB) "
                "WITHOUT ROWID"
            )
        new = tables.create_tables(db, self._base, packed=not self.shared)
        self._check_definition(db)
        if new and self.shared:
            self._create_log(db)

    def _create_log(self, db: sqlite3.Connection) -> None:
        keys, types = self._keys, self._columns.types
        tables.create_triggers(db, self._base, self._table, keys, types, self._where)
        if self._where:
            tables.create_members(db, self._base, self._table, keys, types, self._where)

    def _is_logged(self, db: sqlite3.Connection) -> bool:
        if not self.shared:
            return True  # guards write the journal of their own table
        # Before any change of the schema in a transaction: its version would be used again after a
        # rollback.
        version = db.execute("PRAGMA schema_version").fetchone()[0]
        if version == self._logged_version:
            return True
        try:
            columns = tables.table_columns(db, self._table)
            self._check_columns(columns)
            tables.check_unique(db, self._table, self._keys, columns)
            tables.check_encoding(db, self._table, self._keys)
        except ValueError as error:
            raise schema_error(f"SQLite database {self._connections.path!r}", error) from None
        if not tables.has_triggers(
            db, self._base, self._table, self._keys, conditional=bool(self._where)
        ):
            return False
        self._logged_version = version
        return True

    _quote = staticmethod(tables.quote)

    # Keys in the table.

    def _columns_of(self, db: sqlite3.Connection, keys: Sequence[PlainKey]) -> list[Any]:
        """Return keys as the table has them already, or as the column holds them."""
        held = self._columns
        columns = held.to_columns(keys)
        if not held.are_mixed(db, self._t):
            if None in columns:
                held.require_column(keys[columns.index(None)], self._table)
            return columns
        rows = self._select_rows(db, keys, "NULL")
        there = {held.from_column(column): column for column, _ in rows}
        return [
            there[key] if key in there else held.require_column(key, self._table) for key in keys
        ]

    def _select_rows(
        self, db: sqlite3.Connection, keys: Sequence[PlainKey], value: str
    ) -> list[Any]:
        rows: list[Any] = []
        held, width = self._columns, len(self._keys)
        forms = [form for key in keys for form in held.forms(key)]
        placeholder = "?" if width == 1 else f"({', '.join('?' * width)})"
        # With the table's name: SQLite takes a column that is not there for a string otherwise.
        row = f"{self._t}."
        key = tables.packed(self._keys, held.types, row)
        names = ", ".join(row + self._quote(name) for name in self._keys)
        columns, values = (names, "") if width == 1 else (f"({names})", "VALUES ")
        value = value if value == "NULL" else row + value
        for batch in batches(forms, 500 // width):
            placeholders = ", ".join([placeholder] * len(batch))
            query = (
                f"SELECT {key}, {value} FROM {self._t} "
                f"WHERE {columns} IN ({values}{placeholders}){self._and_where}"
            )
            rows += db.execute(query, [part for form in batch for part in held.row_key(form)])
        # An integer is found where the column holds the same number as a float, too.
        return [row for row in rows if not isinstance(row[0], float)] if self.shared else rows

    def _check_where(self, db: sqlite3.Connection, keys: Sequence[PlainKey]) -> None:
        """Raise `ValueError` if a row that was just written does not satisfy the condition."""
        if self._where:
            rows = self._select_rows(db, keys, "NULL")
            self._check_written(keys, {self._columns.from_column(key) for key, _ in rows})

    def _read_keys(self, db: sqlite3.Connection) -> Iterator[list[Any]]:
        rows = db.execute(
            f"SELECT {tables.packed(self._keys, self._columns.types)} FROM {self._t} "
            f"WHERE {tables.are_key(self._keys, self._columns.types)}{self._and_where}"
        )
        while batch := rows.fetchmany(BATCH):
            yield [key for (key,) in batch]

    # The journal and the index.

    def _lock_journal(self, db: sqlite3.Connection) -> None:
        """Do nothing: the transaction already holds the write lock."""

    def _fetch_journal(self, cursor: Any, limit: int | None = None) -> tuple[Any, list[Any], bool]:
        if not self.shared:
            return read_journal(cursor, limit)
        first, rows, more = super()._fetch_journal(cursor, limit)
        return first, self._without_twins(cursor.connection, rows), more

    def _without_twins(self, db: sqlite3.Connection, rows: list[Any]) -> list[Any]:
        """Return rows of the journal, without removals of keys that the table has in another form.

        Text and a blob of the same bytes are one key, which may be in two rows of the table.
        """
        gone = [self._columns.from_column(key) for _, _, key, added in rows if added == 0 and key]
        if not gone or not self._columns.are_mixed(db, self._t):
            return rows
        there = {self._columns.from_column(key) for key, _ in self._select_rows(db, gone, "NULL")}
        return [
            (seq, token, key, added)
            if added != 0 or key is None or self._columns.from_column(key) not in there
            else (seq, token, None, None)
            for seq, token, key, added in rows
        ]

    def _write(
        self,
        db: sqlite3.Connection,
        statement: str,
        rows: Iterable[Sequence[Any]],
        state: State,
        columns: list[Any],
        adds: bool,
    ) -> _Written:
        """Run a statement for each key; return the changes in the journal, and the position.

        The position is the one before if a trigger of the user changed other keys as well: the
        guard then reads all changes from the journal.
        """
        before = db.total_changes
        direct = db.executemany(statement, rows).rowcount
        last, token = db.execute(self._last_row).fetchone()
        if last == state.last:
            return _Written((), state.position, None)
        position, count = f"{last}.{token}", len(columns)
        if direct == last - state.last == count and db.total_changes - before == 2 * count:
            # The statements changed a row each, and triggers wrote these rows of the journal and
            # nothing else. A row that is written by its key logs one change at most, so all did.
            numbers = range(state.last + 1, last + 1)
            return _Written(
                columns, position, JournalRows(numbers, [adds] * count, columns, position, True)
            )
        logged = db.execute(self._rows_after, (state.last,)).fetchall()
        changed = {key for _, _, key, _ in logged}
        if self.shared and (
            any(added != adds for *_, added in logged) or not changed.issubset(columns)
        ):
            changed.intersection_update(columns)
            position = state.position
        return _Written(changed, position, self._to_journal_rows(logged))

    def _append_to_tail(self, written: _Written, state: State) -> None:
        """Add a write that was committed to the changes that `run` and `scan` include."""
        if self._owner is None or written.rows is None:
            return
        # Rows of others are not in the tail if no guard has asked for them yet.
        if not self._tail.append(state.last, written.rows):
            self._index_after_commit()

    def _index_now(self, owner: str) -> bool:
        try:
            with self._writing(wait=False) as db:
                state = self._read_state(db, owner)
                self._catch_up(db, state)
        except LeaseError:
            self._owner = None
            return True
        except StoreError:
            return False
        self._tail.drop(state.last)
        return True

    def _update_index(
        self, db: sqlite3.Connection, added: Sequence[PlainKey], removed: Sequence[PlainKey]
    ) -> None:
        for keys, statement in ((removed, self._delete_hash), (added, self._insert_hash)):
            if keys:
                words = self._words(keys)
                # Neighbours in the index one after another.
                words = words[np.argsort(words[:, 0])]
                db.executemany(statement, words.tolist())


class _Written(NamedTuple):
    """The result of a write: the columns of changed keys, the position and the journal's rows."""

    changed: Collection[Any]
    position: str
    rows: JournalRows | None


def _packed(rows: JournalRows | None, state: State) -> _Written:
    return (
        _Written((), state.position, None)
        if rows is None
        else _Written(rows.columns, rows.position, rows)
    )


def _commit(
    keys: Sequence[PlainKey],
    existed: list[bool],
    adding: bool,
    since: str,
    state: State,
    written: _Written,
) -> Commit:
    """Return the result of a write."""
    if written.rows is not None and written.position == state.position:
        return Commit(existed, None)  # triggers of the user changed other keys, too
    return commit_of(keys, existed, adding, since, state.position, written.position)
