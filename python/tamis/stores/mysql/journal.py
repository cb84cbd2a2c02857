"""The journal of `tamis.stores.MySQL`: reading it, and keeping it short.

The *floor* rises as follows. A transaction has its number in InnoDB before the trigger takes a
number of the journal. So when a change check has seen the journal's number T, and a later
transaction of ours got the number X, every gap up to T is of a transaction below X. Once InnoDB
lists no open transaction below X, these gaps are filled or never will be. The server may list an
earlier state; our own transaction is missing from it then.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from typing import Any, NamedTuple

from tamis.errors import StoreError
from tamis.stores.base import JOURNAL
from tamis.stores.mysql import tables
from tamis.stores.mysql.connections import (
    LOCK_WAIT,
    NO_PRIVILEGE,
    Connections,
    code_of,
    is_maria,
    query,
    run,
    transaction,
)
from tamis.stores.mysql.position import Position
from tamis.stores.mysql.tables import Names

_PAUSE, _LONG_PAUSE = 0.2, 1.0
"""Seconds between two reads of InnoDB's transactions: with gaps, and to notice TRUNCATE.

InnoDB keeps the list for 0.1 s after somebody has read it.
"""

_LOCK_PAUSE = 60.0
"""Seconds between attempts to find a moment without writers, where transactions are not listed."""

_TRIM, _TRIM_PAUSE = 2000, 5.0
"""Rows of the journal to delete at a time, and seconds for which guards can read them before."""

_MAX_TRANSACTIONS = 5000
"""Open transactions above which InnoDB's list may be cut off."""


class Excerpt(NamedTuple):
    """Rows of the journal that one statement has read, and the state of the journal."""

    schema: str
    floor: int
    trimmed: int
    rows: list[tuple[int, bytes, int]]
    """The number, the key, and 1 or -1 of each row, in order."""
    more: bool


class Journal:
    """The journal of a table."""

    def __init__(self, connections: Connections, names: Names) -> None:
        self._connections, self._names = connections, names
        self.forget()

    def forget(self) -> None:
        """Forget the transactions that this process has seen."""
        self._own_transactions: list[tuple[int, int]] = []
        """Numbers of own transactions, and the top of the journal that was seen before each."""
        self._checked_at = self._trimmed_at = self._locked_at = 0.0
        self._trimmable = 0
        self.may_list = True
        """Whether this user may list the open transactions."""

    def read(self, db: Any, condition: str | None, limit: int | None = None) -> Excerpt | None:
        """Read the state and the rows of the journal that satisfy a condition, in one statement."""
        names = self._names
        *schema, rows = run(
            db,
            *tables.schema_queries(names),
            "SELECT s.floor, s.trimmed, s.table_id, l.token, @@server_id, j.id, j.k, j.n "
            f"FROM {names.state} s LEFT JOIN {names.live} l ON l.one = 1 "
            f"LEFT JOIN {names.journal} j ON {condition or 'FALSE'} WHERE s.one = 1 "
            + ("" if limit is None else f"ORDER BY j.id LIMIT {max(limit, 1) + 1}"),
        )
        floor, trimmed, table_id, token, server = rows[0][:5]
        if token is None:  # the server has started since
            return None
        identity = repr((tables.schema_text(schema), table_id, token, server))
        digest = hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()
        found = sorted((row[5], row[6], row[7]) for row in rows if row[5] is not None)
        more = limit is not None and len(found) > max(limit, 1)
        if more:
            # Rows up to the last one were read, and none above it.
            found = found[: max(limit or 0, 1)]
            floor = min(floor, found[-1][0])
        return Excerpt(digest, floor, trimmed, found, more)

    def maintain(self, seen: Position, excerpt: Excerpt) -> None:
        """Raise the floor, trim the journal and notice TRUNCATE, if that is due."""
        long = seen.top - excerpt.trimmed > 1.1 * JOURNAL
        due = long or bool(seen.gaps and self.may_list)
        at = time.monotonic()
        if at - self._checked_at < (_PAUSE if due else _LONG_PAUSE):
            return
        self._checked_at = at
        with suppress(StoreError):  # a later change check tries again
            if due and self.may_list:
                self._raise_floor(seen.top)
            elif long and seen.gaps and at - self._locked_at > _LOCK_PAUSE:
                self._locked_at = at
                self.raise_floor_by_lock(0)
            if long:
                self._trim(seen.top, max(excerpt.floor, seen.first - 1))
            if self.may_list:
                self.record_table_id()

    def _raise_floor(self, top: int) -> None:
        """Raise the floor of the journal, of which the number ``top`` has been seen."""
        state = self._names.state
        with self._connections.lend() as db:
            try:
                with transaction(db):
                    ((age,),) = query(
                        db,
                        "SELECT ABS(TIMESTAMPDIFF(MICROSECOND, checked, NOW(6))) "
                        f"FROM {state} FOR UPDATE NOWAIT",
                    )
                    if age < _PAUSE * 900_000:
                        return  # another guard has just done it
                    query(db, f"UPDATE {state} SET checked = NOW(6)")  # gets a number
                    floor = self._floor_by(db, top)
                    if floor is not None:
                        query(db, f"UPDATE {state} SET floor = GREATEST(floor, %s)", (floor,))
            except self._connections.pymysql.MySQLError as error:
                if code_of(error) == NO_PRIVILEGE:
                    self.may_list = False
                elif code_of(error) not in (LOCK_WAIT, 3572):
                    raise

    def _floor_by(self, db: Any, top: int) -> int | None:
        """Return the floor by InnoDB's list of open transactions, ours among them."""
        listed = query(
            db,
            "SELECT trx_id, trx_mysql_thread_id = CONNECTION_ID() "
            "FROM information_schema.innodb_trx",
        )
        # Transactions that have not written have no number, or one above all others.
        writers = [(int(x), own) for x, own in listed if 0 < int(x) < 1 << 48]
        own = next((x for x, own in writers if own), None)
        if own is None or len(listed) > _MAX_TRANSACTIONS:
            return None
        self._own_transactions.append((own, top))
        oldest = min(x for x, _ in writers)
        over = [each for each in self._own_transactions if each[0] <= oldest]
        open_yet = [each for each in self._own_transactions if each[0] > oldest]
        self._own_transactions = open_yet[-1000:]
        return max((top for _, top in over), default=None)

    def raise_floor_by_list(self) -> None:
        """Raise the floor to the journal's end, if no transaction that is open has written."""
        with self._connections.lend() as db:
            ((top,),) = query(db, f"SELECT COALESCE(MAX(id), 0) FROM {self._names.journal}")
        time.sleep(_PAUSE)
        self._raise_floor(top)

    def raise_floor_by_lock(self, seconds: float) -> None:
        """Raise the floor at a moment at which no transaction has written to the journal."""
        names = self._names
        db = self._connections.connect()
        try:
            with self._connections.translated():
                tables.alter(db, f"LOCK TABLES {names.journal} READ", seconds)
                ((top,),) = query(db, f"SELECT COALESCE(MAX(id), 0) FROM {names.journal}")
                query(db, "UNLOCK TABLES")
                query(db, f"UPDATE {names.state} SET floor = GREATEST(floor, %s)", (top,))
        finally:
            db.close()

    def _trim(self, top: int, floor: int) -> None:
        """Delete the oldest rows of the journal, if there are many; guards that are behind rebuild.

        Rows up to the floor of a while ago are deleted: a guard that checks now and then has them.
        """
        names, at = self._names, time.monotonic()
        if at - self._trimmed_at < _TRIM_PAUSE:
            return
        upto, self._trimmable, self._trimmed_at = min(self._trimmable, top - JOURNAL), floor, at
        if upto <= 0:
            return
        with self._connections.lend() as db:
            # First the number, then the rows: a check that misses rows sees the number.
            query(db, f"UPDATE {names.state} SET trimmed = GREATEST(trimmed, %s)", (upto,))
            for _ in range(20):
                found = query(
                    db,
                    f"SELECT id FROM {names.journal} WHERE id <= "
                    f"(SELECT trimmed FROM {names.state}) ORDER BY id LIMIT {_TRIM}",
                )
                if not found:
                    return
                # By number: a range would also lock the row that follows, of an open transaction.
                listed = ", ".join(str(number) for (number,) in found)
                query(db, f"DELETE FROM {names.journal} WHERE id IN ({listed})")

    def record_table_id(self) -> None:
        """Record InnoDB's number of the table, which TRUNCATE changes without firing a trigger."""
        names = self._names
        with self._connections.lend() as db:
            source = "innodb_sys_tables" if is_maria(db) else "innodb_tables"
            try:
                found = query(
                    db,
                    f"SELECT table_id FROM information_schema.{source} WHERE name = %s",
                    (f"{_file_name(names.database)}/{_file_name(names.name)}",),
                )
            except self._connections.pymysql.MySQLError as error:
                if code_of(error) != NO_PRIVILEGE:
                    raise
                self.may_list = False
                return
            if found:
                statement = f"UPDATE {names.state} SET table_id = %s WHERE table_id <> %s"
                query(db, statement, (found[0][0],) * 2)


def _file_name(name: str) -> str:
    """Return a name as InnoDB lists it, if its characters are of ASCII.

    >>> _file_name("order lines")
    'order@0020lines'
    """
    return "".join(c if c.isalnum() or c == "_" else f"@{ord(c):04x}" for c in name)
