"""A table that others write too: its checks, the follower, the index, and plain writes.

Guards write such a table like any other client, in transactions of their own and without the lease.
A guard learns of its own keys as of all others, from the journal, at its next change check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tamis.errors import StoreError
from tamis.stores.base import Changes, Commit, Hasher, HashRows, PlainKey, Value, batches
from tamis.stores.postgres import tables
from tamis.stores.postgres.columns import Array, PostgresColumns
from tamis.stores.postgres.connections import READ, WRITE, Connections, run_script
from tamis.stores.postgres.follower import Follower
from tamis.stores.postgres.index import HashIndex
from tamis.stores.postgres.tables import KINDS, quote
from tamis.stores.postgres.triggers import (
    Definition,
    Relation,
    grants,
)

_ARRAYS: dict[type, str] = {bytes: "bytea", str: "text"}
"""Types of values that are sent as arrays, and PostgreSQL's name of each."""

_MAX_ROWS = 1000
"""Rows of other values in one statement: PostgreSQL takes 65,535 parameters."""

_FEW = 8
"""Rows of one statement that are faster sent as parameters than as arrays."""

_RETRIES = 5
"""Attempts at a write that deadlocks with another."""


class SharedTable:
    """A table that others write; `tamis.stores.Postgres` has the connections and the lease."""

    def __init__(
        self,
        connections: Connections,
        table: tuple[str, str, str],
        keys: Sequence[str],
        value: str,
        where: str | None,
        check_columns: Callable[[Mapping[str, object]], None],
        install: bool,
    ) -> None:
        """``table``: the quoted schema with a dot, the table, the prefix of the guard's tables."""
        self._check_columns = check_columns
        self._connections, self._psycopg = connections, connections.psycopg
        self._schema, self._table, self._base = table
        self._keys, self._value, self._where = keys, value, where
        self._name = self._schema + quote(self._table)
        self._and_where = f" AND ({where}\n)".replace("%", "%%") if where else ""
        self._value_type = ""
        self._deferrable = False
        self._follower = Follower(connections, self._describe, install)
        self._index = HashIndex(connections, self._follower)

    @property
    def columns(self) -> PostgresColumns:
        """How the table holds keys."""
        return self._follower.columns

    def forget(self) -> None:
        """Follow as another guard, in a forked child."""
        self._follower.forget()
        self._index.forget()

    # The contract of stores.

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return a position and the keys at that position."""
        self._index.restore()
        position, parts = self._follower.contents()
        return str(position), parts

    def changes(self, since: str, limit: int | None = None) -> Changes | None:
        """Return the changes since a position."""
        changes = self._follower.changes(since, limit)
        self._index.follow(since, changes)
        return changes

    def attach(self, owner: bytes, hasher: Hasher, name: bytes) -> None:
        """Maintain the index of hashes."""
        self._index.attach(owner, hasher, name)

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return the hashes of each range."""
        return self._index.runs(ranges)

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes."""
        return self._index.scan()

    def put_many(self, keys: Sequence[PlainKey], values: Sequence[Value]) -> Commit:
        """Write distinct keys in one transaction."""
        columns = self.columns.to_columns(keys)
        if None in columns:
            self.columns.require_column(keys[columns.index(None)], self._table)
        if self._deferrable:
            raise ValueError(
                f"a put needs a unique index on {', '.join(self._keys)} that is not deferrable; "
                "nothing was written"
            )
        rows = self._write(self._puts(columns, list(values)), self._check_put)
        existed = {key: was for key, was, _ in rows}
        return Commit([existed.get(column, False) for column in columns], None)

    def delete_many(self, keys: Sequence[PlainKey]) -> Commit:
        """Delete distinct keys in one transaction."""
        columns = self.columns.to_columns(keys)
        held = [column for column in columns if column is not None]
        matches, parameters = self._among(held)
        statement = (
            f"DELETE FROM {self._name} WHERE {matches}{self._and_where} "
            f"RETURNING {self.columns.expression}"
        )
        gone = {key for (key,) in self._write([(statement, parameters)] if held else [])}
        return Commit([column in gone for column in columns], None)

    def unguard(self) -> None:
        """Drop everything that was installed."""
        self._follower.remove()

    @property
    def installed(self) -> bool:
        """Whether the guard's tables exist."""
        return self._follower.installed

    def read_keys(self) -> Iterator[list[Any]]:
        """Iterate over the keys, in batches."""
        return self._follower.read_keys()[1]

    def sql(self, role: str) -> list[str]:
        """Return the statements that install everything, and the rights that a role needs."""
        return [*self._follower.statements(), *grants(self._follower.definition, role)]

    # Writes.

    def _among(self, columns: list[Any]) -> tuple[str, list[Any]]:
        """Return the condition that a row's key is among these, and its parameters."""
        if len(columns) > _FEW:
            return self.columns.among(columns)
        rows = [self.columns.row_key(column) for column in columns]
        placeholders = ", ".join([f"({', '.join(['%s'] * len(self._keys))})"] * len(rows))
        names = ", ".join(map(quote, self._keys))
        return f"({names}) IN ({placeholders})", [part for row in rows for part in row]

    def _puts(self, columns: list[Any], values: list[Any]) -> Iterator[tuple[str, list[Any]]]:
        """Return statements that put rows, and their parameters."""
        rows = [self.columns.row_key(column) for column in columns]
        names = [*self._keys, self._value]
        arrays = _ARRAYS if len(values) > _FEW else {}
        for kind, type in arrays.items():
            chosen = [i for i, value in enumerate(values) if value.__class__ is kind]
            if chosen:
                types = [*self.columns.types, type]
                placeholders = ", ".join(f"%b::{each}[]" for each in types)
                new = ", ".join(f"c{i}" for i in range(len(names)))
                source = (
                    f"SELECT {new}::{self._value_type} FROM unnest({placeholders}) AS new ({new})"
                )
                parts = zip(*((*rows[i], values[i]) for i in chosen), strict=True)
                parameters = [Array(t, part) for t, part in zip(types, parts, strict=True)]
                yield self._put(source, [columns[i] for i in chosen], parameters)
        others = [i for i, value in enumerate(values) if value.__class__ not in arrays]
        key_placeholders = "%s, " * len(self._keys)
        for part in batches(others, _MAX_ROWS):
            casts = [f"::{self._value_type}" * (values[i].__class__ in _ARRAYS) for i in part]
            placeholders = ", ".join(f"({key_placeholders}%s{cast})" for cast in casts)
            parameters = [each for i in part for each in (*rows[i], values[i])]
            yield self._put(f"VALUES {placeholders}", [columns[i] for i in part], parameters)

    def _put(self, source: str, columns: list[Any], parameters: list[Any]) -> tuple[str, list[Any]]:
        """Return a statement that puts rows and returns which of the keys were there."""
        k, v, key = ", ".join(map(quote, self._keys)), quote(self._value), self.columns.expression
        insert = (
            f"INSERT INTO {self._name} ({k}, {v}) {source} "
            f"ON CONFLICT ({k}) DO UPDATE SET {v} = excluded.{v} RETURNING {key} AS k"
        )
        if not (self._where or self._follower.definition.partitioned):
            # A row that was inserted has no earlier version, whose locker it would know.
            return f"{insert}, xmax <> 0, true", parameters
        satisfies = self._and_where.removeprefix(" AND ") or "true"
        matches, keys = self._among(columns)
        return (
            f"WITH before AS (SELECT {key} AS k FROM {self._name} WHERE {matches}"
            f"{self._and_where}), put AS ({insert}, {satisfies} AS satisfies) "
            "SELECT put.k, before.k IS NOT NULL, put.satisfies FROM put LEFT JOIN before USING (k)"
        ), [*keys, *parameters]

    def _check_put(self, rows: Sequence[Any]) -> None:
        """Raise `ValueError` if a put wrote a row that does not satisfy the condition."""
        for column, _, satisfies in rows:
            if not satisfies:
                key = self.columns.from_plain(self.columns.from_column(column))
                raise ValueError(
                    f"the row of key {key!r} does not satisfy where={self._where!r}, so it would "
                    "be absent; nothing was written"
                )

    def _write(self, statements: Any, check: Callable[[Sequence[Any]], None] | None = None) -> Any:
        """Write in one transaction, and return the rows of the statements."""
        statements = [*statements]
        for attempt in range(_RETRIES):
            try:
                return self._transaction(statements, self._where and check)
            except StoreError as error:
                deadlocked = isinstance(error.__cause__, self._psycopg.errors.DeadlockDetected)
                if attempt == _RETRIES - 1 or not deadlocked:
                    raise

    def _transaction(self, statements: list[tuple[str, list[Any]]], check: Any) -> list[Any]:
        with self._connections.lend() as db:
            if len(statements) == 1 and not check:
                return self._connections.run_one(db, WRITE, *statements[0])
            with db.transaction(), self._connections.pipeline(db):
                cursors = [db.execute(*each, binary=True) for each in statements]
                written = [row for cursor in cursors for row in cursor.fetchall()]
                if check:
                    check(written)
            return written

    # Checks of the table.

    def _describe(self, db: Any) -> tuple[Definition, PostgresColumns]:
        """Describe the table to follow; `ValueError` if it cannot be followed."""
        name = self._name
        if db.execute("SELECT pg_is_in_recovery()").fetchone()[0]:
            raise ValueError(
                "conninfo must be of the primary server, not of a standby, on which changes cannot "
                "be followed"
            )
        found = tables.columns_of(db, name)
        self._check_columns(found)
        relations = Follower.read_relations(db, name)
        self._check_relations(db, relations)
        tables.check_keys(db, name, self._keys, found)
        types = [found[key] for key in self._keys]
        self._check_text(db, types)
        where_columns: list[tuple[str, str]] = []
        if self._where:
            where_columns = tables.check_condition(db, self._psycopg.Error, name, self._where)
        try:
            run_script(
                db, READ, "SET LOCAL row_security = off", f"SELECT FROM {name} LIMIT 0", "COMMIT"
            )
        except self._psycopg.errors.InsufficientPrivilege as error:
            raise ValueError(
                f"table must not hide rows from this role, as {self._table!r} does by its "
                f"row-level security, or denies it all: {error}"
            ) from None
        self._value_type = tables.full_type(db, name, self._value)
        self._deferrable = not any(tables.unique_indexes(db, name, self._keys))
        columns = PostgresColumns(self._keys, types, own=False)
        return Definition(
            self._schema,
            self._table,
            self._base,
            tuple(self._keys),
            tuple(types),
            self._where,
            tuple(where_columns),
            relations[0].kind == "p",
        ), columns

    def _check_relations(self, db: Any, relations: list[Relation]) -> None:
        """Refuse anything but tables, and tables with rows that their triggers do not see."""
        for relation in relations:
            if relation.kind not in "rp":
                raise ValueError(
                    f"table must be a table without foreign partitions, not {self._table!r} "
                    f"({relation.name} is of kind {relation.kind!r})"
                )
        parents = db.execute(
            "SELECT inhparent::regclass::text FROM pg_inherits WHERE inhrelid = to_regclass(%s)",
            (self._name,),
        ).fetchall()
        if parents:
            raise ValueError(
                f"table must not be a partition or a child of another one, as {self._table!r} is "
                f"of {parents[0][0]}: writes to that one fire no trigger of its children"
            )

    def _check_text(self, db: Any, types: Sequence[str]) -> None:
        """Refuse text that is equal without being the same bytes."""
        texts = [key for key, type in zip(self._keys, types, strict=True) if KINDS[type] == "text"]
        row = db.execute(
            "SELECT a.attname, c.collname FROM pg_attribute AS a "
            "JOIN pg_collation AS c ON c.oid = a.attcollation "
            "WHERE a.attrelid = to_regclass(%s) AND a.attname = ANY(%s) "
            "AND NOT c.collisdeterministic",
            (self._name, texts),
        ).fetchone()
        if row:
            raise ValueError(
                f"key must have a deterministic collation, not {row[1]!r} as column {row[0]!r}: "
                "texts that are equal by it have different hashes"
            )
