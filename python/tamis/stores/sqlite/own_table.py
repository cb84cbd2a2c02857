"""How `tamis.stores.SQLite` writes a table of its own, which has no triggers.

Only guards write to that table, so they log their changes themselves, many at a time: a row of the
journal holds up to 256 keys that a commit added or removed, in the column ``keys``; a single key is
in the column ``key``. A row has the number of its last key, so the numbers count changes.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence
from typing import Any

from tamis.stores.base import JOURNAL, batches
from tamis.stores.encoding import pack_keys, unpack_keys
from tamis.stores.sql.journaled import TRIM_EVERY
from tamis.stores.tail import JournalRows

MAX_KEYS = 256
"""Keys in a row of the journal."""

JOURNAL_COLUMNS = "seq, token, key, added, keys"


class OwnTable:
    """The statements that write a table and its journal, in a transaction of the caller."""

    def __init__(self, table: str, journal: str) -> None:
        self._table = table
        self._insert = f"INSERT INTO {table} (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING"
        self._update = f"UPDATE {table} SET value = ?2 WHERE key = ?1"
        self._delete = f"DELETE FROM {table} WHERE key = ?"
        self._log = f"INSERT INTO {journal} (seq, token, added, key, keys) VALUES (?, ?, ?, ?, ?)"
        self._trim = f"DELETE FROM {journal} WHERE seq <= ?"

    def put(
        self, db: sqlite3.Connection, columns: list[bytes], values: Sequence[bytes], last: int
    ) -> JournalRows | None:
        """Write rows; log the new ones after the journal's row ``last``, and return them."""
        rows = [*zip(columns, values, strict=True)]
        new = self._run(db, self._insert, rows, absent=True)
        if len(new) < len(rows):
            there = rows
            if new:
                inserted = set(new)
                there = [row for row in rows if row[0] not in inserted]
            db.executemany(self._update, there)
        return self._journal(db, new, True, last)

    def delete(self, db: sqlite3.Connection, columns: list[bytes], last: int) -> JournalRows | None:
        """Delete rows; log the rows that existed after the journal's row ``last``."""
        gone = self._run(db, self._delete, [*zip(columns, strict=True)], absent=False)
        return self._journal(db, gone, False, last)

    def _run(
        self, db: sqlite3.Connection, statement: str, rows: list[Any], *, absent: bool
    ) -> list[bytes]:
        """Run a statement for each key; return the keys whose rows it changed.

        These are the keys that were ``absent`` before, or present. SQLite returns only their
        number, which is enough if all or no rows changed. Otherwise the keys are looked up first.
        """
        if len(rows) > 1:
            db.execute("SAVEPOINT tamis_write")
        count = db.executemany(statement, rows).rowcount
        if count == len(rows):
            return [row[0] for row in rows]
        if count == 0:
            return []
        db.execute("ROLLBACK TO tamis_write")
        there: set[bytes] = set()
        for part in batches(rows, 500):
            query = f"SELECT key FROM {self._table} WHERE key IN ({', '.join('?' * len(part))})"
            there.update(key for (key,) in db.execute(query, [row[0] for row in part]))
        changed = [row for row in rows if (row[0] not in there) == absent]
        db.executemany(statement, changed)
        return [row[0] for row in changed]

    def _journal(
        self, db: sqlite3.Connection, keys: list[bytes], added: bool, last: int
    ) -> JournalRows | None:
        if not keys:
            return None
        number = token = last
        for part in batches(keys, MAX_KEYS):
            number, token = number + len(part), secrets.randbits(63)
            key, packed = (part[0], None) if len(part) == 1 else (None, pack_keys(part))
            db.execute(self._log, (number, token, added, key, packed))
        if number // TRIM_EVERY > last // TRIM_EVERY:
            db.execute(self._trim, (number - JOURNAL,))
        numbers = range(last + 1, number + 1)
        return JournalRows(numbers, [added] * len(keys), keys, f"{number}.{token}", True)


def read_journal(
    cursor: sqlite3.Cursor, limit: int | None
) -> tuple[Any, list[tuple[int, int, Any, Any]], bool]:
    """Return the first row, the rows after it with one key each, and whether there are more.

    Keys of one row have the same number, and are not separated by the limit.
    """
    first = cursor.fetchone()
    rows: list[tuple[int, int, Any, Any]] = []
    for seq, token, key, added, packed in cursor:
        if limit is not None and len(rows) >= limit:
            cursor.close()  # which ends the read transaction
            return first, rows, True
        keys = [key] if packed is None else unpack_keys(packed)
        rows += [(seq, token, each, added) for each in keys]
    return first, rows, False
