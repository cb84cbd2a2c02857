"""The functions with which `tamis.stores.Postgres` writes, each in one round trip.

A function locks the journal, checks the lease and the triggers, writes, and returns the last row of
the journal before the write and the rows that the triggers wrote. Each of its statements has a
snapshot of its own, taken after the lock, so it sees everything that others committed before.
"""

from __future__ import annotations

from typing import Any

from tamis.stores.base import batches
from tamis.stores.postgres.columns import Array
from tamis.stores.postgres.tables import advisory_lock, dollar_quoted, logged, quote

Call = tuple[str, tuple[Any, ...]]
"""A statement that calls a function, and its parameters after the owner's name."""

NO_LEASE, NOT_HELD, NOT_LOGGED = -1, -2, -3
"""Returned instead of a row's number if another guard holds the lease, if none does, and if there
are no triggers that would write the journal."""


def name(schema: str, table: str, part: str) -> str:
    """Return the quoted name of the function ``put`` or ``delete`` of a table."""
    return schema + quote(f"tamis_{table}_{part}")


class Calls:
    """The statements that call the functions of a table, and their parameters."""

    def __init__(self, schema: str, table: str) -> None:
        put, delete = (name(schema, table, part) for part in ("put", "delete"))
        self._put, self._put_one = _calls(put, 2)
        self._delete, self._delete_one = _calls(delete, 1)

    def put(self, columns: list[Any], values: list[bytes], batch_size: int) -> list[Call]:
        """Return the calls that put keys, ``batch_size`` at a time."""
        if len(columns) == 1:
            return [(self._put_one, (columns[0], values[0]))]
        parts = zip(batches(columns, batch_size), batches(values, batch_size), strict=True)
        return [(self._put, (Array("bytea", keys), Array("bytea", new))) for keys, new in parts]

    def delete(self, columns: list[Any], batch_size: int) -> list[Call]:
        """Return the calls that delete keys, ``batch_size`` at a time."""
        if len(columns) == 1:
            return [(self._delete_one, (columns[0],))]
        parts = [*batches(columns, batch_size)] or [[]]
        return [(self._delete, (Array("bytea", part),)) for part in parts]


def _calls(function: str, count: int) -> tuple[str, str]:
    """Return the statements that call a function with arrays, and with single values.

    The driver handles array parameters slowly.
    """
    many, one = (
        ", ".join([placeholder] * count) for placeholder in ("%b::bytea[]", "ARRAY[%b::bytea]")
    )
    call = f"SELECT * FROM {function}(%b::bytea, {{}})"
    return call.format(many), call.format(one)


def create(db: Any, schema: str, table: str) -> None:
    """Create the functions of a table of the guard's own."""
    t = schema + quote(table)
    journal, meta = (schema + quote(f"tamis_{table}_{part}") for part in ("journal", "meta"))
    logs = logged(schema, f"tamis_{table}", table)
    for part, parameters, write in (
        (
            "put",
            "keys bytea[], new_values bytea[]",
            f"INSERT INTO {t} (key, value) SELECT * FROM unnest(keys, new_values) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        ),
        ("delete", "keys bytea[]", f"DELETE FROM {t} AS t WHERE t.key = ANY(keys)"),
    ):
        body = (
            "\n#variable_conflict use_column\n"
            "DECLARE holder bytea; last bigint; last_token bigint; BEGIN "
            f"PERFORM {advisory_lock(table)}; "
            f"SELECT value INTO holder FROM {meta} WHERE name = 'lease' FOR SHARE; "
            f"IF holder IS NULL THEN last := {NOT_HELD}; "
            f"ELSIF holder <> writer THEN last := {NO_LEASE}; "
            f"ELSIF NOT {logs} THEN last := {NOT_LOGGED}; END IF; "
            "IF last IS NOT NULL THEN RETURN QUERY SELECT last, NULL::bigint, "
            "NULL::bytea, NULL::boolean; RETURN; END IF; "
            f"SELECT j.seq, j.token INTO last, last_token FROM {journal} j "
            "ORDER BY j.seq DESC LIMIT 1; "
            f"{write}; "
            "RETURN QUERY SELECT last, last_token, NULL::bytea, NULL::boolean; "
            f"RETURN QUERY SELECT j.seq, j.token, j.key, j.added FROM {journal} j "
            "WHERE j.seq > last ORDER BY j.seq; END"
        )
        db.execute(
            f"CREATE OR REPLACE FUNCTION {name(schema, table, part)}(writer bytea, {parameters}) "
            "RETURNS TABLE (seq bigint, token bigint, key bytea, added boolean) "
            f"LANGUAGE plpgsql AS {dollar_quoted(body)}"
        )


def drop(db: Any, schema: str, table: str) -> None:
    """Drop the functions of a table."""
    for part in ("put", "delete"):
        db.execute(f"DROP FUNCTION IF EXISTS {name(schema, table, part)}")
