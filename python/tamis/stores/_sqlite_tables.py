"""The tables and triggers of `tamis.stores.SQLite`, and checks of the table to guard."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence

from tamis.stores._sql import TRIM_EVERY
from tamis.stores.contract import JOURNAL


def quote(name: str) -> str:
    """Quote a name for use in a statement."""
    if "\0" in name:
        raise ValueError(f"a table or column name must not contain a null character: {name!r}")
    return '"' + name.replace('"', '""') + '"'


def is_key(column: str) -> str:
    """Return the condition that a column's value is a key: text, an integer or a blob."""
    # Not `IN`: SQLite would build a table for the list each time a trigger runs.
    return f"{column} IS NOT NULL AND typeof({column}) <> 'real'"


def table_columns(db: sqlite3.Connection, table: str) -> dict[str, tuple[str, int]]:
    """Return the declared type of each column, and its place in the primary key."""
    rows = db.execute(f"PRAGMA table_info({quote(table)})")
    return {row[1]: (row[2].upper(), row[5]) for row in rows}


def check_unique(
    db: sqlite3.Connection,
    table: str,
    keys: Sequence[str],
    columns: Mapping[str, tuple[str, int]],
) -> None:
    """Raise `ValueError` if the key columns of an existing table are not unique."""
    declared, primary = columns[keys[0]]
    row_id = len(keys) == 1 and primary and declared == "INTEGER"
    if not (row_id or _has_unique_index(db, table, keys)):
        what = "a column" if len(keys) == 1 else "columns"
        raise ValueError(
            f"key must be {what} with a unique index of its own and collation BINARY, not "
            f"{', '.join(map(repr, keys))}"
        )


def check_condition(db: sqlite3.Connection, table: str, where: str) -> None:
    """Raise `ValueError` for a condition that does not depend on the columns of a row alone.

    SQLite requires the same of a partial index, so the check creates one on an empty copy.
    """
    copy = quote(f"tamis_check_{table}")
    try:
        db.execute(f"CREATE TEMP TABLE {copy} AS SELECT * FROM main.{quote(table)} WHERE 0")
        try:
            column = quote(next(iter(table_columns(db, f"tamis_check_{table}"))))
            db.execute(f"CREATE INDEX temp.tamis_check ON {copy} ({column}) WHERE {where}")
        finally:
            db.execute(f"DROP TABLE temp.{copy}")
    except (sqlite3.OperationalError, sqlite3.ProgrammingError, sqlite3.Warning) as error:
        raise ValueError(
            f"where must be a condition on columns of {table!r}, not {where!r}: {error}"
        ) from None


def uuid_form(declared: str) -> str | None:
    """Return how a column of this declared type stores UUIDs: "hex", "text" or "bytes"."""
    length = re.fullmatch(r".*(CHAR|BLOB)\s*\((16|32|36)\)", declared)
    return (
        {"CHAR32": "hex", "CHAR36": "text", "BLOB16": "bytes"}.get("".join(length.groups()))
        if length
        else None
    )


def key_type(key: str, columns: Mapping[str, tuple[str, int]]) -> str:
    """Return the type of a key column of an existing table."""
    declared = columns[key][0]
    # SQLite's rules of column affinity, in its order.
    if "INT" in declared:
        return "integer"
    if any(part in declared for part in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if not declared or "BLOB" in declared:
        return "blob"
    raise ValueError(
        f"key must be a column of text, integers or blobs, not {key!r} of type {declared}"
    )


def packed(keys: Sequence[str], types: Sequence[str], row: str = "") -> str:
    """Return the expression for the key of a row, of one column or packed of several."""
    columns = [row + quote(key) for key in keys]
    if len(keys) == 1:
        return columns[0]
    return " || ',' || ".join(
        f"'i' || {column}" if type == "integer" else f"'b' || hex({column})"
        for column, type in zip(columns, types, strict=True)
    )


def are_key(keys: Sequence[str], types: Sequence[str], row: str = "") -> str:
    """Return the condition that a row has a key: of several columns, each has its own type."""
    if len(keys) == 1:
        # A column of text turns floats into text.
        return (
            f"{row}{quote(keys[0])} IS NOT NULL"
            if types == ["text"]
            else is_key(row + quote(keys[0]))
        )
    return " AND ".join(
        f"typeof({row}{quote(key)}) = '{type}'" for key, type in zip(keys, types, strict=True)
    )


def _has_unique_index(db: sqlite3.Connection, table: str, keys: Sequence[str]) -> bool:
    indexes = db.execute(f"PRAGMA index_list({quote(table)})").fetchall()
    wanted = sorted((key, "BINARY") for key in keys)
    return any(
        sorted(
            (row[2] or "", row[4])
            for row in db.execute(f"PRAGMA index_xinfo({quote(index[1])})")
            if row[5]
        )
        == wanted
        for index in indexes
        if index[2] and not index[4]
    )


def create_tables(db: sqlite3.Connection, base: str, *, packed: bool) -> bool:
    """Create the guard's tables, whose names begin with ``base``; return `False` if they exist.

    In a ``packed`` journal, a row can hold several keys.
    """
    hashes, journal, meta = (quote(f"{base}_{part}") for part in ("hash", "journal", "meta"))
    for statement in (
        f"{hashes} (hi INTEGER, lo INTEGER, key, PRIMARY KEY (hi, lo, key)) WITHOUT ROWID",
        # The last row is never deleted, so numbers are never used again.
        f"{journal} (seq INTEGER PRIMARY KEY, token INTEGER DEFAULT (random()), "
        f"added INTEGER, key{', keys BLOB' if packed else ''})",
        f"{meta} (name TEXT PRIMARY KEY, value, until REAL)",
    ):
        db.execute(f"CREATE TABLE IF NOT EXISTS {statement}")
    if db.execute(f"SELECT 1 FROM {journal}").fetchone():
        return False
    db.execute(f"INSERT INTO {journal} (added) VALUES (NULL)")
    return True


def create_triggers(
    db: sqlite3.Connection,
    base: str,
    table: str,
    keys: Sequence[str],
    types: Sequence[str],
    where: str | None = None,
) -> None:
    """Create the triggers that write the journal and trim it, for key columns of these types."""
    drop_triggers(db, base)
    journal = quote(f"{base}_journal")

    def create(name: str, event: str, condition: str, statement: str) -> None:
        when = f"WHEN {condition} " if condition else ""
        db.execute(
            f"CREATE TRIGGER {quote(f'{base}_{name}')} AFTER {event} {when}BEGIN {statement}; END"
        )

    for name, event, row, added in (
        ("insert", "INSERT", "new.", 1),
        ("delete", "DELETE", "old.", 0),
        # An update of the key removes one key and adds another.
        ("leave", "UPDATE", "old.", 0),
        ("enter", "UPDATE", "new.", 1),
    ):
        conditions = [are_key(keys, types, row)]
        if where is not None:
            statement = _reconcile(base, table, keys, types, where, row)
        else:
            key = packed(keys, types, row)
            statement = f"INSERT INTO {journal} (added, key) VALUES ({added}, {key})"
            if event == "UPDATE":
                old, new = ([f"{row}.{quote(key)}" for key in keys] for row in ("old", "new"))
                changed = [f"{o} IS NOT {n}" for o, n in zip(old, new, strict=True)]
                conditions.append(f"({' OR '.join(changed)})")
        create(name, f"{event} ON {quote(table)}", " AND ".join(conditions), statement)
    create(
        "trim",
        f"INSERT ON {journal}",
        f"new.seq % {TRIM_EVERY} = 0",
        f"DELETE FROM {journal} WHERE seq <= new.seq - {JOURNAL}",
    )


def _reconcile(
    base: str, table: str, keys: Sequence[str], types: Sequence[str], where: str, row: str
) -> str:
    """Return the statements that record whether a key is now one that satisfies the condition.

    The condition is evaluated on the table itself: on ``new`` and ``old`` SQLite would compare
    without the affinity of the columns, and find other rows than a query does. It cannot be
    evaluated on a deleted row, so a table of *members* has the keys that satisfied it before.
    """
    journal, member = quote(f"{base}_journal"), quote(f"{base}_member")
    key = packed(keys, types, row)
    same = " AND ".join(f"{quote(name)} = {row}{quote(name)}" for name in keys)
    now = f"EXISTS (SELECT 1 FROM {quote(table)} WHERE {same} AND ({where}\n))"
    before = f"EXISTS (SELECT 1 FROM {member} WHERE key = {key})"
    # No `OR IGNORE`: the statement that fires the trigger may override it.
    return "; ".join(
        (
            f"INSERT INTO {journal} (added, key) SELECT 1, {key} WHERE {now} AND NOT {before}",
            f"INSERT INTO {journal} (added, key) SELECT 0, {key} WHERE NOT {now} AND {before}",
            f"INSERT INTO {member} SELECT {key} WHERE {now} AND NOT {before}",
            f"DELETE FROM {member} WHERE key = {key} AND NOT {now}",
        )
    )


def create_members(
    db: sqlite3.Connection,
    base: str,
    table: str,
    keys: Sequence[str],
    types: Sequence[str],
    where: str,
) -> None:
    """Create the table of the keys that satisfy the condition; see `_reconcile`."""
    member = quote(f"{base}_member")
    db.execute(f"CREATE TABLE IF NOT EXISTS {member} (key PRIMARY KEY) WITHOUT ROWID")
    db.execute(f"DELETE FROM {member}")
    db.execute(
        f"INSERT INTO {member} SELECT {packed(keys, types)} FROM {quote(table)} "
        f"WHERE {are_key(keys, types)} AND ({where}\n)"
    )


def has_triggers(db: sqlite3.Connection, base: str, table: str) -> bool:
    """Return whether all four triggers that write the journal exist, and on this table."""
    names = [f"{base}_{name}" for name in ("insert", "delete", "leave", "enter")]
    query = (
        "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' "
        "AND name COLLATE NOCASE IN (?, ?, ?, ?) AND tbl_name = ? COLLATE NOCASE"
    )
    return bool(db.execute(query, (*names, table)).fetchone()[0] == len(names))


def drop_triggers(db: sqlite3.Connection, base: str) -> None:
    """Drop the triggers that exist."""
    for name in ("insert", "delete", "leave", "enter", "trim"):
        db.execute(f"DROP TRIGGER IF EXISTS {quote(f'{base}_{name}')}")


def drop(db: sqlite3.Connection, base: str) -> None:
    """Drop the guard's tables and triggers."""
    drop_triggers(db, base)
    for part in ("hash", "journal", "meta"):
        db.execute(f"DROP TABLE {quote(f'{base}_{part}')}")
    db.execute(f"DROP TABLE IF EXISTS {quote(f'{base}_member')}")
