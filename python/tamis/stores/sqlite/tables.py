"""The tables and triggers of `tamis.stores.SQLite`, its lease, and checks of the table to guard.

The lease is in two rows of the metadata, ``lease`` and ``clock``. It expires by a clock that the
processes of one boot share. A lease of another boot, or of a system without such a clock, is
watched for its length (`stores/lease.py`).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tamis._clock import clock_id, now
from tamis.stores.base import JOURNAL
from tamis.stores.lease import WatchedLease
from tamis.stores.sql.journaled import TRIM_EVERY


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


def check_encoding(db: sqlite3.Connection, table: str, keys: Sequence[str]) -> None:
    """Raise `ValueError` for keys that triggers cannot write, or that compare by other rules."""
    encoding = db.execute("PRAGMA encoding").fetchone()[0]
    if len(keys) > 1 and encoding != "UTF-8":
        raise ValueError(
            f"{table!r} has its text as {encoding}, for which keys of several columns are not "
            "supported: only for UTF-8"
        )
    for key in keys:
        # The first part of a compound query decides by which collation its rows are compared.
        query = (
            f"SELECT count(*) FROM (SELECT {quote(key)} FROM {quote(table)} WHERE 0 "
            "UNION SELECT 'a' UNION SELECT 'A' UNION SELECT 'a ')"
        )
        if db.execute(query).fetchone()[0] != 3:
            raise ValueError(
                f"key must be a column that compares by its bytes, not {key!r}: its collation in "
                f"{table!r} is not BINARY"
            )


def check_condition(db: sqlite3.Connection, table: str, where: str) -> None:
    """Raise `ValueError` for a condition that does not depend on the columns of a row alone.

    SQLite requires the same of a partial index, so the check creates one on an empty copy. A
    condition that is one expression is valid both with and without parentheses.
    """
    copy = quote(f"tamis_check_{table}")
    try:
        db.execute(f"CREATE TEMP TABLE {copy} AS SELECT * FROM main.{quote(table)} WHERE 0")
        try:
            column = quote(next(iter(table_columns(db, f"tamis_check_{table}"))))
            for i, condition in enumerate((where, f"({where}\n)")):
                db.execute(
                    f"CREATE INDEX temp.tamis_check{i} ON {copy} ({column}) WHERE {condition}"
                )
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
        f"{hashes} (hi INTEGER, lo INTEGER, PRIMARY KEY (hi, lo)) WITHOUT ROWID",
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

    moved, hides = _is_moved(keys), may_hide(db, table, keys)
    for name, event, row, added, only in (
        ("insert", "INSERT", "new.", 1, None),
        ("delete", "DELETE", "old.", 0, None),
        # An update of the key removes one key and adds another.
        ("leave", "UPDATE", "old.", 0, moved),
        ("enter", "UPDATE", "new.", 1, moved),
        # Any other update may change whether the row satisfies the condition.
        ("change", "UPDATE", "new.", None, f"NOT ({moved})"),
    ):
        if where is None and added is None:
            continue
        key = packed(keys, types, row)
        statement = f"INSERT INTO {journal} (added, key) VALUES ({added}, {key})"
        if where is not None:
            state = _state_of(base, table, keys, types, where, row)
            statement = state.arrived() if added and hides else state.changed()
            name = "arrive" if name == "insert" and hides else name
        conditions = [are_key(keys, types, row), *([f"({only})"] if only else [])]
        create(name, f"{event} ON {quote(table)}", " AND ".join(conditions), statement)
    create(
        "trim",
        f"INSERT ON {journal}",
        f"new.seq % {TRIM_EVERY} = 0",
        f"DELETE FROM {journal} WHERE seq <= new.seq - {JOURNAL}",
    )


def _is_moved(keys: Sequence[str]) -> str:
    """Return the condition that an update changes the key: 1 and 1.0 are equal, but not one key."""
    return " OR ".join(
        f"old.{quote(key)} IS NOT new.{quote(key)} "
        f"OR typeof(old.{quote(key)}) <> typeof(new.{quote(key)})"
        for key in keys
    )


class _Condition(NamedTuple):
    """Statements of triggers for a key that satisfies the condition now, or did before.

    The condition is evaluated on the table itself: on ``new`` and ``old`` SQLite would compare
    without the affinity of the columns, and find other rows than a query does. It cannot be
    evaluated on a deleted row, so a table of *members* has the keys that satisfied it before.

    INSERT OR REPLACE and UPDATE OR REPLACE delete rows without firing a trigger, so in a table with
    further unique columns (`may_hide`) a key may be listed as a member although it has no row. It
    is listed correctly from the moment at which a row arrives with that key. Until then it must not
    be logged as removed, as a filter that was rebuilt meanwhile does not have it; and it is logged
    as added, even if the filter has it already.
    """

    journal: str
    member: str
    key: str
    now: str
    """Whether the key has a row that satisfies the condition."""

    @property
    def _listed(self) -> str:
        return f"EXISTS (SELECT 1 FROM {self.member} WHERE key = {self.key})"

    def arrived(self) -> str:
        """Return the statements for a row that has this key since now."""
        return "; ".join((self._log(1, self.now), *self._list()))

    def changed(self) -> str:
        """Return the statements for a row that had this key before."""
        return "; ".join(
            (
                self._log(1, f"{self.now} AND NOT {self._listed}"),
                self._log(0, f"NOT {self.now} AND {self._listed}"),
                *self._list(),
            )
        )

    def _log(self, added: int, condition: str) -> str:
        return (
            f"INSERT INTO {self.journal} (added, key) SELECT {added}, {self.key} WHERE {condition}"
        )

    def _list(self) -> tuple[str, str]:
        # No `OR IGNORE`: the statement that fires the trigger may override it.
        return (
            f"INSERT INTO {self.member} SELECT {self.key} WHERE {self.now} AND NOT {self._listed}",
            f"DELETE FROM {self.member} WHERE key = {self.key} AND NOT {self.now}",
        )


def _state_of(
    base: str, table: str, keys: Sequence[str], types: Sequence[str], where: str, row: str
) -> _Condition:
    same = " AND ".join(f"{quote(name)} = {row}{quote(name)}" for name in keys)
    now = f"EXISTS (SELECT 1 FROM {quote(table)} WHERE {same} AND ({where}\n))"
    journal, member = quote(f"{base}_journal"), quote(f"{base}_member")
    return _Condition(journal, member, packed(keys, types, row), now)


def create_members(
    db: sqlite3.Connection,
    base: str,
    table: str,
    keys: Sequence[str],
    types: Sequence[str],
    where: str,
) -> None:
    """Create the table of the keys that satisfy the condition; see `_Condition`."""
    member = quote(f"{base}_member")
    db.execute(f"CREATE TABLE IF NOT EXISTS {member} (key PRIMARY KEY) WITHOUT ROWID")
    db.execute(f"DELETE FROM {member}")
    db.execute(
        f"INSERT INTO {member} SELECT {packed(keys, types)} FROM {quote(table)} "
        f"WHERE {are_key(keys, types)} AND ({where}\n)"
    )


def may_hide(db: sqlite3.Connection, table: str, keys: Sequence[str]) -> bool:
    """Return whether a conflict can replace a row of another key: by further unique columns."""
    columns = table_columns(db, table)
    primary = [name for name, (_, place) in columns.items() if place]
    row_id = len(primary) == 1 and columns[primary[0]][0] == "INTEGER" and primary != [*keys]
    return row_id or any(
        {row[2] for row in db.execute(f"PRAGMA index_xinfo({quote(index[1])})") if row[5]}
        != {*keys}
        for index in db.execute(f"PRAGMA index_list({quote(table)})").fetchall()
        if index[2]
    )


def has_triggers(
    db: sqlite3.Connection, base: str, table: str, keys: Sequence[str], *, conditional: bool
) -> bool:
    """Return whether all triggers that write the journal exist, and on this table."""
    arrival = "arrive" if conditional and may_hide(db, table, keys) else "insert"
    parts = (arrival, "delete", "leave", "enter", *(["change"] if conditional else []))
    names = [f"{base}_{part}" for part in parts]
    query = (
        "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE "
        f"AND name COLLATE NOCASE IN ({', '.join('?' * len(names))})"
    )
    return bool(db.execute(query, (table, *names)).fetchone()[0] == len(names))


def drop_triggers(db: sqlite3.Connection, base: str) -> None:
    """Drop the triggers that exist."""
    for name in ("insert", "arrive", "delete", "leave", "enter", "change", "trim"):
        db.execute(f"DROP TRIGGER IF EXISTS {quote(f'{base}_{name}')}")


def drop(db: sqlite3.Connection, base: str) -> None:
    """Drop the guard's tables and triggers."""
    drop_triggers(db, base)
    for part in ("hash", "journal", "meta"):
        db.execute(f"DROP TABLE {quote(f'{base}_{part}')}")
    db.execute(f"DROP TABLE IF EXISTS {quote(f'{base}_member')}")


def take_lease(
    db: sqlite3.Connection, meta: str, owner: bytes, seconds: float, watched: WatchedLease
) -> bool:
    """Take or renew the lease in a transaction; return `False` if another owner has it."""
    # In this order: the lease lasts at least until the guard stops relying on it.
    until = now() + seconds
    record = db.execute(
        f"SELECT l.value, l.until, c.value, c.until FROM {meta} l "
        f"JOIN {meta} c ON c.name = 'clock' WHERE l.name = 'lease'"
    ).fetchone()
    clock = (clock_id() or "").encode()
    if record is not None and record[0] != owner:
        _, other_until, other_clock, length = record
        if clock and other_clock == clock:
            over = other_until <= now()
        else:
            over = watched.is_over(record, max(length, seconds))
        if not over:
            return False
    db.executemany(
        f"INSERT OR REPLACE INTO {meta} VALUES (?, ?, ?)",
        [("lease", owner, until), ("clock", clock, seconds)],
    )
    return True


def release_lease(db: sqlite3.Connection, meta: str, owner: bytes) -> None:
    """Release the lease if this owner holds it."""
    db.execute(f"DELETE FROM {meta} WHERE name = 'lease' AND value = ?", (owner,))
