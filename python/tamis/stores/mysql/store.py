"""`tamis.stores.MySQL`: an existing table of MariaDB or MySQL that others write too.

Row triggers write a journal (`tables.py`). A *change check* is one statement that reads the
rows of the journal that this follower has not seen, including rows that fill gaps (`position.py`),
together with the floor of the journal. The sum of +1 and -1 per key leads from one set of keys to
the next: the order of commits does not matter, so no writer ever waits for another one.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from typing import Any

from tamis._checks import check_int
from tamis.errors import LeaseError, StoreError
from tamis.stores.base import (
    BATCH,
    Changes,
    Commit,
    Hasher,
    HashRows,
    PlainKey,
    Store,
    Value,
    batches,
    check_found,
    check_timeout,
)
from tamis.stores.connections import forget_after_fork
from tamis.stores.lease import WatchedLease
from tamis.stores.mysql import tables
from tamis.stores.mysql.columns import MySQLColumns
from tamis.stores.mysql.connections import (
    NO_TRIGGER,
    Connections,
    code_of,
    connection_fields,
    query,
    retry_deadlocks,
    run,
    transaction,
)
from tamis.stores.mysql.index import Index, check_lease, read_metadata, write_metadata
from tamis.stores.mysql.journal import Excerpt, Journal
from tamis.stores.mysql.position import MAX_GAPS, Position
from tamis.stores.mysql.tables import Names, quote

_SNAPSHOT = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)


class MySQL(Store):
    """An existing InnoDB table of a MariaDB or MySQL database.

    ``table``, ``key`` and ``value`` are the names of the table, of its key column (unique; text
    that is compared as bytes, integers, binary strings or uuid), or of several columns that are
    unique together, and of the column that `get` returns. A key of several columns is a tuple.
    ``where`` is a condition on the columns: rows that do not satisfy it are absent. Other programs
    may continue to write to the table, with or without tamis.
    """

    shared = True

    def __init__(
        self,
        url: Any,
        *,
        table: str,
        key: str | Sequence[str],
        value: str,
        where: str | None = None,
        timeout: float | None = 30.0,
        connections: int = 8,
        install: bool = True,
    ) -> None:
        """Open the database: a URL such as ``"mysql://user:password@localhost/shop"``.

        It may also be an engine of SQLAlchemy or a connection of Django, whose database is opened
        once more. ``timeout`` is how many seconds to wait for the server. ``install=False`` creates
        nothing: such a store is for `read_keys`, `sql`, `installed` and `unguard`.
        """
        for name, given in {"table": table, "value": value, "where": where}.items():
            if not isinstance(given, str) and (name != "where" or given is not None):
                raise TypeError(f"{name} must be a str, not {given!r}")
        keys = (key,) if isinstance(key, str) else tuple(key or ())
        if not keys or not all(isinstance(name, str) for name in keys):
            raise TypeError(f"key must be the name of a column, or a list of names, not {key!r}")
        if where is not None and not where.strip():
            raise ValueError(
                f"where must be a condition on columns of {table!r}, or None, not {where!r}"
            )
        self._connections = Connections(
            connection_fields(url),
            check_int("connections", connections, 10**4, minimum=2),
            check_timeout(timeout),
        )
        database, dot, name = table.partition(".")
        if not dot:
            database, name = self._connections.database, table
        self._names = Names(database, name, keys, where)
        self._keys, self._value, self._where = keys, value, where
        self._k, self._v = ", ".join(map(quote, keys)), quote(value)
        self._and_where = f" AND ({where}\n)" if where else ""
        self._lock = threading.RLock()
        self._watched = WatchedLease()
        self._index: Index | None = None
        self._owner_suffix = ""
        self._journal = Journal(self._connections, self._names)
        try:
            with self._connections.lend() as db:
                self._check(db, ValueError)
                if install:
                    for statement in tables.create_statements(self._names):
                        query(db, statement)
                    self._check_definition(db)
                    self._create_triggers(db)
        except BaseException:
            self.close()
            raise
        forget_after_fork(self)

    # Keys and values.

    def to_plain(self, key: Any) -> PlainKey:
        """Return a key as filters hash it and as the other methods take it."""
        return self._columns.to_plain(key)

    def from_plain(self, key: PlainKey) -> Any:
        """Return a key in the caller's form: of several columns, a tuple; text as bytes."""
        return self._columns.from_plain(key)

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        with self._connections.lend() as db:
            found = self._select(db, keys, self._v)
        # `None` would mean that the key is absent, so NULL is read as an empty value.
        values = {key: "" if value is None else value for key, value in found}
        check_found(self._names.name, keys, values)
        return [values.get(key) for key in keys]

    def put_many(
        self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str, since: str = ""
    ) -> Commit:
        """Write distinct keys and their values in one transaction; it needs no lease."""
        columns = self._columns
        rows = [columns.row_key(columns.require_column(key, self._names.name)) for key in keys]
        placeholders = ", ".join(["%s"] * (len(self._keys) + 1))
        upsert = (
            f"INSERT INTO {self._names.table} ({self._k}, {self._v}) VALUES ({placeholders}) "
            f"ON DUPLICATE KEY UPDATE {self._v} = VALUES({self._v})"
        )

        def write(db: Any) -> None:
            with db.cursor() as cursor:
                cursor.executemany(upsert, [(*row, v) for row, v in zip(rows, values, strict=True)])
            # Another unique index may have led to another row.
            found = {key for key, _ in self._select(db, keys, "NULL")}
            for key in keys:
                if key not in found:
                    why = f"does not satisfy where={self._where!r}" if self._where else "is missing"
                    raise ValueError(
                        f"the row of key {self.from_plain(key)!r} {why}, so it would be absent; "
                        "nothing was written"
                    )

        changed = self._write(write) if keys else {}
        return Commit([changed.get(key, 0) <= 0 for key in keys], None)

    def delete_many(self, keys: Sequence[PlainKey], owner: str, since: str = "") -> Commit:
        """Delete distinct keys in one transaction; it needs no lease."""

        def write(db: Any) -> None:
            for matches, arguments in self._matches(keys):
                query(db, f"DELETE FROM {self._names.table} WHERE {matches}", arguments)

        changed = self._write(write) if keys else {}
        return Commit([changed.get(key, 0) < 0 for key in keys], None)

    def _write(self, write: Any) -> dict[PlainKey, int]:
        """Write in one transaction; return the keys added (1) and removed (-1), by the journal."""
        names, shows = self._names, tables.schema_queries(self._names)[1:]

        def once() -> dict[PlainKey, int]:
            with self._connections.lend() as db, transaction(db):
                ((before,),) = query(db, f"SELECT COALESCE(MAX(id), 0) FROM {names.journal}")
                write(db)
                run(db, *shows)  # nobody drops a trigger before this transaction ends
                rows = query(
                    db,
                    f"SELECT k, n FROM {names.journal} WHERE id > %s AND c = CONNECTION_ID()",
                    (before,),
                )
            return self._sums([(self._columns.from_journal(k), n) for k, n in rows])

        try:
            return retry_deadlocks(once)
        except StoreError as error:
            if code_of(error.__cause__) != NO_TRIGGER:
                raise
        self._restore()
        return retry_deadlocks(once)

    @staticmethod
    def _sums(rows: Sequence[tuple[PlainKey, int]]) -> dict[PlainKey, int]:
        sums: dict[PlainKey, int] = {}
        for key, n in rows:
            sums[key] = sums.get(key, 0) + n
        return sums

    def _matches(self, keys: Sequence[PlainKey]) -> Iterator[tuple[str, list[Any]]]:
        """Yield the condition that a row has a key of a batch, and its parameters, per batch."""
        rows = [row for key in keys if (row := self._columns.to_row(key)) is not None]
        placeholder = "%s" if len(self._keys) == 1 else f"({', '.join(['%s'] * len(self._keys))})"
        names = self._k if len(self._keys) == 1 else f"({self._k})"
        for part in batches(rows):
            placeholders = ", ".join([placeholder] * len(part))
            yield (
                f"{names} IN ({placeholders}){self._and_where}",
                [value for row in part for value in row],
            )

    def _select(self, db: Any, keys: Sequence[PlainKey], value: str) -> list[tuple[PlainKey, Any]]:
        """Return the key and a value of the rows with one of the keys."""
        found = []
        for matches, arguments in self._matches(keys):
            statement = f"SELECT {self._k}, {value} FROM {self._names.table} WHERE {matches}"
            rows = query(db, statement, arguments)
            found += [(self._columns.from_row(row[:-1]), row[-1]) for row in rows]
        return found

    # Positions and changes.

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return a position and the keys at that position, from one snapshot."""
        self._restore()
        for attempt in range(3):
            position, parts = self._snapshot()
            if len(position.gaps) <= MAX_GAPS:
                return str(position), parts
            parts.close()
            if attempt == 0 and self._journal.may_list:
                self._journal.raise_floor_by_list()
            elif attempt < 2:
                self._journal.raise_floor_by_lock(self._connections.seconds)
        raise StoreError(
            f"{self._names.name!r} cannot be followed now: more than {MAX_GAPS} transactions were "
            "rolled back while another one was open"
        )

    def _snapshot(self) -> tuple[Position, Any]:
        names = self._names
        db = self._connections.connect()
        try:
            with self._connections.translated():
                # In this order: rows written without triggers after the first statement are
                # noticed by the next change check.
                excerpt = self._journal.read(db, None)
                run(db, *_SNAPSHOT)
                ((floor,),) = query(db, f"SELECT floor FROM {names.state}")
                rows = query(db, f"SELECT id FROM {names.journal} WHERE id > {floor} ORDER BY id")
        except BaseException:
            db.close()
            raise
        assert excerpt is not None
        start = Position(floor, excerpt.schema)

        def read() -> Iterator[list[Any]]:
            try:
                yield []  # so that the connection is closed even if nobody reads on
                for rows in self._read_keys(db):
                    yield [self._columns.from_row(row) for row in rows]
            finally:
                db.close()

        parts = read()
        next(parts)
        return start.after([number for (number,) in rows], floor), parts

    def _read_keys(self, db: Any) -> Iterator[Any]:
        """Iterate over the key columns on a connection, in batches in the order of an index."""
        order = [quote(name) for name in self._order]
        present = " AND ".join(f"{name} IS NOT NULL" for name in order)
        start = f"SELECT {self._k} FROM {self._names.table} WHERE {present}{self._and_where}"
        end = f" ORDER BY {', '.join(order)} LIMIT {BATCH}"
        # (a, b) > (x, y), in a form for which the index is used.
        above = [
            " AND ".join([*(f"{name} = %s" for name in order[:i]), f"{order[i]} > %s"])
            for i in range(len(order))
        ]
        after = f" AND (({') OR ('.join(above)}))"
        places = [self._keys.index(name) for name in self._order]
        with self._connections.translated():
            rows = query(db, start + end)
        while rows:
            yield rows
            last = [rows[-1][place] for place in places]
            arguments = [part for i in range(len(last)) for part in last[: i + 1]]
            with self._connections.translated():
                rows = query(db, start + after + end, arguments)

    def changes(self, since: str, limit: int | None = None) -> Changes | None:
        """Return the changes since a position; `None` if the journal does not reach back to it."""
        position = Position.parse(since)
        if position is None:
            return None
        with nullcontext() if self._index is None else self._lock:
            index = self._index
            behind = None if index is None else index.position_unless(since)
            excerpt = self._read_journal([position, *([behind] if behind else [])], limit)
            found = None if excerpt is None else self._between(position, excerpt)
            if excerpt is not None and found is not None and index is not None:
                try:
                    self._move(index, self._between(behind, excerpt) if behind else found)
                except LeaseError:
                    self._index = None  # the next holder of the lease follows the journal
        if excerpt is not None and found is not None:
            end = Position.parse(found.position)
            assert end is not None
            self._journal.maintain(end, excerpt)
        return found

    def _read_journal(self, starts: Sequence[Position], limit: int | None) -> Excerpt | None:
        """Read the rows that one of these positions has not seen; `None` without triggers."""
        condition = " OR ".join(start.condition("j.id") for start in starts)
        try:
            with self._connections.lend() as db:
                return self._journal.read(db, condition, limit)
        except StoreError as error:
            if code_of(error.__cause__) == NO_TRIGGER:
                return None
            raise

    def _between(self, start: Position, excerpt: Excerpt) -> Changes | None:
        """Return the changes since a position, if the excerpt of the journal reaches back to it."""
        if excerpt.schema != start.schema or start.first <= excerpt.trimmed:
            return None
        lacks = start.lacks([row[0] for row in excerpt.rows])
        rows = [row for row, new in zip(excerpt.rows, lacks, strict=True) if new]
        sums = self._sums([(self._columns.from_journal(k), n) for _, k, n in rows])
        end = start.after([row[0] for row in rows], excerpt.floor)
        if len(end.gaps) > MAX_GAPS or any(abs(n) > 1 for n in sums.values()):
            return None
        added = [key for key, n in sums.items() if n > 0]
        return Changes(str(end), added, [key for key, n in sums.items() if n < 0], excerpt.more)

    # The index and the lease.

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher; rebuild the index if it had another name."""
        index = Index(self._connections.lend, self._names, owner + self._owner_suffix, hasher, name)
        with self._lock:
            position = index.open() and Position.parse(index.position)
            excerpt = self._read_journal([position], None) if position else None
            self._move(index, self._between(position, excerpt) if position and excerpt else None)
            self._index = index

    def _move(self, index: Index, changes: Changes | None) -> None:
        """Let an index follow changes, or build it if they are unknown."""
        if changes is None:
            index.build(*self.contents())
        else:
            index.follow(changes.added, changes.removed, changes.position)

    def run(self, lo: int, hi: int) -> HashRows:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        return self.runs([(lo, hi)])[0]

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return `run` of each range."""
        return self._attached().runs(ranges)

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        return self._attached().scan()

    def _attached(self) -> Index:
        if (index := self._index) is None:
            raise LeaseError("there is no index of hashes: this guard does not hold the lease")
        return index

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, unless another guard may rely on it."""
        name, meta = (owner + self._owner_suffix).encode(), self._names.meta
        with self._connections.lend() as db, transaction(db):
            record = read_metadata(db, meta, "lease", " FOR UPDATE") or b""
            holder, _, length = record.rsplit(b" ", 2) if record else (b"", b"", b"0")
            if holder not in (b"", name) and not self._watched.is_over(
                record, max(float(length), seconds)
            ):
                return False
            renewal = f"{secrets.token_hex(8)} {seconds}".encode()
            write_metadata(db, meta, "lease", name + b" " + renewal)
        return True

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        name, meta = owner + self._owner_suffix, self._names.meta
        with suppress(LeaseError), self._connections.lend() as db, transaction(db):
            check_lease(db, meta, name)
            write_metadata(db, meta, "lease", b"")

    def metadata(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return the metadata of this name; first set it to ``value``, if given."""
        with self._connections.lend() as db:
            if value is not None:
                write_metadata(db, self._names.meta, f"user {name}", value)
            return read_metadata(db, self._names.meta, f"user {name}")

    # Tables and triggers.

    def sql(self, role: str) -> list[str]:
        """Return the statements that install all that follows the table, and the rights.

        The last statements grant the rights that a guard needs to a user, such as ``"tamis"`` or
        ``"tamis@localhost"``.
        """
        triggers = tables.trigger_statements(self._names, self._bodies)
        rights = tables.grants(self._names, role)
        return [*tables.create_statements(self._names), *triggers.values(), *rights]

    @property
    def installed(self) -> bool:
        """Whether the guard's tables exist."""
        with self._connections.lend() as db:
            return tables.exist(db, self._names)

    def read_keys(self) -> Iterator[list[Any]]:
        """Iterate over the keys, in batches, from one snapshot; nothing is written."""
        with closing(self._connections.connect()) as db:
            run(db, *_SNAPSHOT)
            for rows in self._read_keys(db):
                yield [self._columns.from_row(row) for row in rows]

    def unguard(self) -> None:
        """Drop the guard's tables and triggers, keep the guarded table, and close the store."""
        with self._connections.lend() as db:
            tables.drop(db, self._names, self._connections.seconds)
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def forget_connections(self) -> object:
        """Open new connections in a forked child."""
        self._lock = threading.RLock()
        self._owner_suffix = f"/{secrets.token_hex(8)}"
        self._index = None
        self._journal.forget()
        return self._connections.forget()

    def _check(self, db: Any, error: type[Exception]) -> None:
        """Check that the table can be guarded, and learn the types of its keys."""
        names, columns = self._names, tables.columns_of(db, self._names)
        if not columns:
            raise error(f"table must be a table of the database, not {names.name!r}")
        for what, name in (*(("key", key) for key in self._keys), ("value", self._value)):
            if name not in columns:
                listed = ", ".join(columns)
                raise error(f"{what} must be a column of {names.name!r} ({listed}), not {name!r}")
        refusals = (columns[key].refusal(key) for key in self._keys)
        if refusal := next(filter(None, refusals), None) or tables.check_table(db, names):
            raise error(refusal)
        if not (order := tables.unique_index(db, names, self._keys)):
            what = "a column" if len(self._keys) == 1 else "columns"
            listed = ", ".join(map(repr, self._keys))
            raise error(f"key must be {what} with a unique index of its own, not {listed}")
        self._order = order
        self._columns = MySQLColumns(self._keys, [columns[key] for key in self._keys])
        self.translates_keys = True
        if self._where is not None and error is ValueError:
            tables.check_condition(db, self._connections.pymysql, names, self._where)
        self._bodies = tables.bodies(names, self._keys, columns, self._where)

    def _check_definition(self, db: Any) -> None:
        """Record by which column a table is guarded, or check that it is the same."""
        if len(self._keys) > 1 or self._where:
            return  # the names of the tables contain it
        known = read_metadata(db, self._names.meta, "key column")
        if known is None:
            write_metadata(db, self._names.meta, "key column", self._keys[0].encode())
        elif known.decode() != self._keys[0]:
            raise ValueError(
                f"key must be {known.decode()!r}, by which {self._names.name!r} is guarded "
                f"already, not {self._keys[0]!r}; unguard() ends that"
            )

    def _create_triggers(self, db: Any) -> None:
        tables.create_triggers(db, self._names, self._bodies, self._connections.seconds)
        token = secrets.randbits(63)
        query(db, f"INSERT IGNORE INTO {self._names.live} VALUES (1, %s)", (token,))

    def _restore(self) -> None:
        """Check the table again, and create triggers that are gone."""
        with self._connections.lend() as db:
            read_metadata(db, self._names.meta, "lease")  # an error if the guard was removed
            self._check(db, StoreError)
            self._create_triggers(db)
        if self._journal.may_list:
            self._journal.record_table_id()
