"""The lease of `tamis.stores.SQLite`, in two rows of the guard's metadata: ``lease`` and ``clock``.

It expires by a clock that the processes of a boot share. A lease of another boot, or of a system
without such a clock, is watched for its length (see `_lease.py`).
"""

from __future__ import annotations

import sqlite3

from tamis._clock import clock_id, now
from tamis.stores._lease import WatchedLease


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
