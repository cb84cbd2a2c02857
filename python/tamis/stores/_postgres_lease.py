"""The lease of `tamis.stores.Postgres`, in two rows of the guard's metadata.

It is watched, not compared with the server's clock, which may step (see `_lease.py`). ``lease`` is
its owner, whose row every write locks in share mode until its commit, so that nobody takes the
lease meanwhile; ``renewal`` changes with each renewal, which therefore waits for no write.
"""

from __future__ import annotations

import secrets
from typing import Any

from tamis.stores._lease import WatchedLease


def take_lease(
    db: Any,
    rollback: type[Exception],
    meta: str,
    owner: bytes,
    seconds: float,
    watched: WatchedLease,
) -> bool:
    """Take or renew the lease in a transaction, unless another guard may rely on it.

    If it has changed meanwhile, ``rollback``, which ends the transaction, is raised.
    """
    renewal = f"{secrets.token_hex(8)} {seconds}".encode()
    # A lease that a crash of the server took back would be granted twice.
    db.execute("SET LOCAL synchronous_commit = on")
    db.execute("SET LOCAL lock_timeout = '1s'")
    renewed = db.execute(
        f"WITH held AS (SELECT FROM {meta} WHERE name = 'lease' AND value = %s FOR SHARE) "
        f"INSERT INTO {meta} SELECT 'renewal', %s FROM held "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value RETURNING 1",
        (owner, renewal),
    ).fetchone()
    if renewed:
        return True
    query = f"SELECT name, value FROM {meta} WHERE name IN ('lease', 'renewal')"
    record = dict(db.execute(query).fetchall())
    if "lease" in record:
        length = float(bytes(record["renewal"]).split()[1])
        if not watched.is_over(record, max(length, seconds)):
            return False
    for part, value in (("lease", owner), ("renewal", renewal)):
        if not _replace(db, meta, part, value, record.get(part)):
            raise rollback
    return True


def _replace(db: Any, meta: str, name: str, value: bytes, known: bytes | None) -> bool:
    """Write a row of the metadata, unless it has changed since it was read."""
    if known is None:
        statement = f"INSERT INTO {meta} VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING 1"
        return db.execute(statement, (name, value)).fetchone() is not None
    statement = f"UPDATE {meta} SET value = %s WHERE name = %s AND value = %s RETURNING 1"
    return db.execute(statement, (value, name, known)).fetchone() is not None


def release_lease(db: Any, meta: str, owner: bytes) -> None:
    """Release the lease if this owner holds it."""
    db.execute(f"DELETE FROM {meta} WHERE name = 'lease' AND value = %s", (owner,))
