"""The functions by which `tamis.stores.Postgres` writes, each in one round trip.

A function takes the lock of the journal, checks the lease and the triggers, writes, and returns the
row of the journal before the write and those that the triggers wrote. Each of its statements has a
snapshot of its own, taken after the lock, so it sees all that others committed before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tamis.stores._postgres_arrays import Array
from tamis.stores._postgres_tables import advisory_lock, logged, quote
from tamis.stores.contract import batches

Call = tuple[str, tuple[Any, ...]]
"""A statement that calls a function, and its parameters after the owner's name."""

_ARRAYS: dict[type, str] = {bytes: "bytea", str: "text"}
"""Types of values that the functions take, and PostgreSQL's name of each."""

NO_LEASE, NOT_HELD, NOT_LOGGED = -1, -2, -3
"""Returned instead of a row's number if another guard holds the lease, if none does, and if there
are no triggers that would write the journal."""


def name(schema: str, table: str, part: str) -> str:
    """Return the quoted name of the function ``put`` or ``delete`` of a table."""
    return schema + quote(f"tamis_{table}_{part}")


class Calls:
    """The statements that call the functions of a table, and their parameters."""

    def __init__(self, schema: str, table: str, key_type: str) -> None:
        put, delete = (name(schema, table, part) for part in ("put", "delete"))
        self._type = key_type
        self._delete, self._delete_one = _call(delete, key_type), _call_for_one(delete, key_type)
        self._put = {kind: _call(put, key_type, sql) for kind, sql in _ARRAYS.items()}
        self._put_one = {kind: _call_for_one(put, key_type, sql) for kind, sql in _ARRAYS.items()}

    @staticmethod
    def take(values: Iterable[Any]) -> bool:
        """Return whether functions can put these values."""
        return {*map(type, values)} <= _ARRAYS.keys()

    def put(self, columns: list[Any], values: list[Any], most: int) -> list[Call]:
        """Return the calls that put keys, at most ``most`` each."""
        if len(columns) == 1:
            return [(self._put_one[type(values[0])], (columns[0], values[0]))]
        calls: list[Call] = []
        for kind, sql in _ARRAYS.items():
            indices = [i for i, value in enumerate(values) if type(value) is kind]
            for part in batches(indices, most):
                keys = Array(self._type, [columns[i] for i in part])
                calls.append((self._put[kind], (keys, Array(sql, [values[i] for i in part]))))
        return calls

    def delete(self, columns: list[Any], most: int) -> list[Call]:
        """Return the calls that delete keys, at most ``most`` each."""
        if len(columns) == 1:
            return [(self._delete_one, (columns[0],))]
        parts = [*batches(columns, most)] or [[]]
        return [(self._delete, (Array(self._type, part),)) for part in parts]


def _call(function: str, *types: str) -> str:
    """Return the statement that calls a function with arrays of these types."""
    marks = ", ".join(f"%b::{type}[]" for type in types)
    return f"SELECT * FROM {function}(%b::bytea, {marks})"


def _call_for_one(function: str, *types: str) -> str:
    """Return the same for one key, without array parameters, which the driver handles slowly."""
    marks = ", ".join(f"ARRAY[%b::{type}]" for type in types)
    return f"SELECT * FROM {function}(%b::bytea, {marks})"


def create(db: Any, schema: str, table: str, key: tuple[str, str], value: tuple[str, str]) -> None:
    """Create the functions of a table, given the names and types of its two columns."""
    t = schema + quote(table)
    journal, meta = (schema + quote(f"tamis_{table}_{part}") for part in ("journal", "meta"))
    logs = logged(schema, f"tamis_{table}", table)
    (k, key_type), (v, value_type) = (quote(key[0]), key[1]), (quote(value[0]), value[1])
    for part, parameters, write in (
        (
            "put",
            f"keys {key_type}[], new_values anyarray",
            f"INSERT INTO {t} ({k}, {v}) SELECT new.k, new.v::{value_type} "
            "FROM unnest(keys, new_values) AS new (k, v) "
            f"ON CONFLICT ({k}) DO UPDATE SET {v} = excluded.{v}",
        ),
        ("delete", f"keys {key_type}[]", f"DELETE FROM {t} WHERE {k} = ANY(keys)"),
    ):
        db.execute(
            f"CREATE OR REPLACE FUNCTION {name(schema, table, part)}(writer bytea, {parameters}) "
            f"RETURNS TABLE (seq bigint, token bigint, key {key_type}, added boolean) "
            "LANGUAGE plpgsql AS $$\n"
            "#variable_conflict use_column\n"
            "DECLARE holder bytea; last bigint; last_token bigint; BEGIN "
            f"PERFORM {advisory_lock(table)}; "
            f"SELECT value INTO holder FROM {meta} WHERE name = 'lease' FOR SHARE; "
            f"IF holder IS NULL THEN last := {NOT_HELD}; "
            f"ELSIF holder <> writer THEN last := {NO_LEASE}; "
            f"ELSIF NOT {logs} THEN last := {NOT_LOGGED}; END IF; "
            "IF last IS NOT NULL THEN RETURN QUERY SELECT last, NULL::bigint, "
            f"NULL::{key_type}, NULL::boolean; RETURN; END IF; "
            f"SELECT j.seq, j.token INTO last, last_token FROM {journal} j "
            "ORDER BY j.seq DESC LIMIT 1; "
            f"{write}; "
            f"RETURN QUERY SELECT last, last_token, NULL::{key_type}, NULL::boolean; "
            f"RETURN QUERY SELECT j.seq, j.token, j.key, j.added FROM {journal} j "
            "WHERE j.seq > last ORDER BY j.seq; END $$"
        )


def drop(db: Any, schema: str, table: str) -> None:
    """Drop the functions of a table."""
    for part in ("put", "delete"):
        db.execute(f"DROP FUNCTION IF EXISTS {name(schema, table, part)}")
