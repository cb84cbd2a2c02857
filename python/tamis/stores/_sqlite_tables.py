"""The tables and triggers of `tamis.stores.SQLite`, and what it accepts as a table to guard."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from tamis.stores._sql import TRIM_EVERY
from tamis.stores.contract import JOURNAL

LAYOUT = b"2"
"""Version of the triggers; those of another version are replaced."""


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


def key_type(
    db: sqlite3.Connection, table: str, key: str, columns: Mapping[str, tuple[str, int]]
) -> str:
    """Check the key column of an existing table, and return its type."""
    declared, primary = columns[key]
    row_id = primary and declared == "INTEGER"
    if not (row_id or _has_unique_index(db, table, key)):
        raise ValueError(
            f"key must be a column with a unique index of its own and collation BINARY, not {key!r}"
        )
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


def _has_unique_index(db: sqlite3.Connection, table: str, key: str) -> bool:
    indexes = db.execute(f"PRAGMA index_list({quote(table)})").fetchall()
    return any(
        [(row[2], row[4]) for row in db.execute(f"PRAGMA index_xinfo({quote(index[1])})") if row[5]]
        == [(key, "BINARY")]
        for index in indexes
        if index[2] and not index[4]
    )


def create_tables(db: sqlite3.Connection, table: str) -> None:
    """Create the tables beside a table that do not exist yet."""
    hashes, journal, note = (quote(f"tamis_{table}_{part}") for part in ("hash", "journal", "note"))
    for statement in (
        f"{hashes} (hi INTEGER, lo INTEGER, key, PRIMARY KEY (hi, lo, key)) WITHOUT ROWID",
        # The last row is never deleted, so numbers are never used again.
        f"{journal} (seq INTEGER PRIMARY KEY, token INTEGER DEFAULT (random()), "
        "added INTEGER, key)",
        f"{note} (name TEXT PRIMARY KEY, value, until REAL)",
    ):
        db.execute(f"CREATE TABLE IF NOT EXISTS {statement}")
    if not db.execute(f"SELECT 1 FROM {journal}").fetchone():
        db.execute(f"INSERT INTO {journal} (added) VALUES (NULL)")


def create_triggers(db: sqlite3.Connection, table: str, key: str, type: str | None) -> None:
    """Create the triggers that write the journal and trim it, for a key column of this type.

    The type is `None` for a table of the guard's own, whose keys need not be looked at.
    """
    drop_triggers(db, table)
    journal, column = quote(f"tamis_{table}_journal"), quote(key)

    def create(name: str, event: str, condition: str, statement: str) -> None:
        when = f"WHEN {condition} " if condition else ""
        db.execute(
            f"CREATE TRIGGER {quote(f'tamis_{table}_{name}')} AFTER {event} {when}"
            f"BEGIN {statement}; END"
        )

    for name, event, row, added in (
        ("insert", "INSERT", "new", 1),
        ("delete", "DELETE", "old", 0),
        # An update of the key removes one key and adds another.
        ("leave", "UPDATE", "old", 0),
        ("enter", "UPDATE", "new", 1),
    ):
        # A column of text turns floats into text.
        conditions = {None: [], "text": [f"{row}.{column} IS NOT NULL"]}.get(
            type, [is_key(f"{row}.{column}")]
        )
        if event == "UPDATE":
            conditions.append(f"old.{column} IS NOT new.{column}")
        create(
            name,
            f"{event} ON {quote(table)}",
            " AND ".join(conditions),
            f"INSERT INTO {journal} (added, key) VALUES ({added}, {row}.{column})",
        )
    create(
        "trim",
        f"INSERT ON {journal}",
        f"new.seq % {TRIM_EVERY} = 0",
        f"DELETE FROM {journal} WHERE seq <= new.seq - {JOURNAL}",
    )


def drop_triggers(db: sqlite3.Connection, table: str) -> None:
    """Drop the triggers that exist."""
    for name in ("insert", "delete", "leave", "enter", "trim"):
        db.execute(f"DROP TRIGGER IF EXISTS {quote(f'tamis_{table}_{name}')}")
