"""The index of hashes of `tamis.stores.MySQL`, for filters that adapt.

The guard that holds the lease applies the changes that it is given. The latest ones are in memory,
and in the table some thousand at a time; the metadata ``indexed`` is the position of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from tamis.stores.base import BATCH, Hasher, HashRows, PlainKey, lease_error
from tamis.stores.encoding import SIGN, from_signed, to_signed
from tamis.stores.mysql.connections import query, transaction
from tamis.stores.mysql.position import Position
from tamis.stores.mysql.tables import Names
from tamis.stores.tail import MAX_TAIL, View


def read_metadata(db: Any, meta: str, name: str, lock: str = "") -> bytes | None:
    """Return the metadata of a name."""
    rows = query(db, f"SELECT value FROM {meta} WHERE name = %s{lock}", (name.encode(),))
    return rows[0][0] if rows else None


def write_metadata(db: Any, meta: str, name: str, value: bytes) -> None:
    """Set the metadata of a name."""
    query(db, f"REPLACE INTO {meta} VALUES (%s, %s)", (name.encode(), value))


def check_lease(db: Any, meta: str, owner: str) -> None:
    """Raise `LeaseError` without the lease; nobody takes it before the transaction ends."""
    held = read_metadata(db, meta, "lease", " LOCK IN SHARE MODE") or b""
    holder = held.rpartition(b" ")[0].rpartition(b" ")[0].decode()
    if holder != owner:
        raise lease_error("" if holder else None)


class Index:
    """The hashes of the keys at a position, in a table and in memory."""

    def __init__(
        self,
        lend: Callable[[], AbstractContextManager[Any]],
        names: Names,
        owner: str,
        hasher: Hasher,
        name: bytes,
    ) -> None:
        self._lend, self._names, self._owner = lend, names, owner
        self._hasher, self._name = hasher, name
        self.position = ""
        self._latest: dict[tuple[int, int], bool] = {}
        """Whether each hash that the table does not have yet was added or removed."""

    def open(self) -> bool:
        """Return whether the table has an index of this name, at `position`."""
        with self._lend() as db, transaction(db):
            check_lease(db, self._names.meta, self._owner)
            if read_metadata(db, self._names.meta, "index") == self._name:
                indexed = read_metadata(db, self._names.meta, "indexed")
                self.position = (indexed or b"").decode()
        return bool(self.position)

    def position_unless(self, position: str) -> Position | None:
        """Return the position of the index, or `None` if it is this one."""
        return None if position == self.position else Position.parse(self.position)

    def build(self, position: str, parts: Iterator[list[PlainKey]]) -> None:
        """Index all keys at a position."""
        meta, hashes = self._names.meta, self._names.hash
        with self._lend() as db:
            with transaction(db):
                check_lease(db, meta, self._owner)
                query(db, f"DELETE FROM {meta} WHERE name IN ('index', 'indexed')")
            query(
                db,
                f"CREATE TABLE IF NOT EXISTS {hashes} (hi BIGINT, lo BIGINT, PRIMARY KEY (hi, lo)) "
                "ENGINE=InnoDB",
            )
            query(db, f"TRUNCATE TABLE {hashes}")
            for keys in parts:
                self._write(db, [*map(tuple, self._hasher(keys).tolist())] if keys else [], [])
            with transaction(db):
                check_lease(db, meta, self._owner)
                write_metadata(db, meta, "index", self._name)
                write_metadata(db, meta, "indexed", position.encode())
        self.position, self._latest = position, {}

    def follow(self, added: Sequence[PlainKey], removed: Sequence[PlainKey], position: str) -> None:
        """Apply changes that lead to a position."""
        latest = dict(self._latest)
        for keys, present in ((removed, False), (added, True)):
            if keys:
                latest |= dict.fromkeys(map(tuple, self._hasher(keys).tolist()), present)
        self._latest, self.position = latest, position
        if len(latest) >= MAX_TAIL:
            self.flush()

    def flush(self) -> None:
        """Write the latest changes to the table."""
        latest = self._latest
        with self._lend() as db:
            self._write(
                db,
                [hash for hash, present in latest.items() if present],
                [hash for hash, present in latest.items() if not present],
                self.position,
            )
        self._latest = {}

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return the hashes of each range."""
        # Before the table is read: changes may move to it meanwhile.
        views = [self._within(lo, hi) for lo, hi in ranges]
        statement = f"SELECT hi, lo FROM {self._names.hash} WHERE hi BETWEEN %s AND %s"
        with self._lend() as db:
            stored = [query(db, statement, (lo - SIGN, hi - SIGN)) for lo, hi in ranges]
        return [view.apply(from_signed(rows)) for view, rows in zip(views, stored, strict=True)]

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        return self._within(0, 2**64 - 1).apply_to_parts(self._scan())

    def _scan(self) -> Iterator[HashRows]:
        statement = f"SELECT hi, lo FROM {self._names.hash} {{}} ORDER BY hi, lo LIMIT {BATCH}"
        after = statement.format("WHERE hi > %s OR (hi = %s AND lo > %s)")
        with self._lend() as db:
            rows = query(db, statement.format(""))
        while rows:
            yield from_signed(rows)
            hi, lo = rows[-1]
            with self._lend() as db:
                rows = query(db, after, (hi, hi, lo))

    def _within(self, lo: int, hi: int) -> View:
        latest = [item for item in self._latest.items() if lo <= item[0][0] <= hi]
        return View(
            [hash for hash, present in latest if present],
            [hash for hash, present in latest if not present],
        )

    def _write(
        self,
        db: Any,
        added: Sequence[tuple[int, int]],
        removed: Sequence[tuple[int, int]],
        position: str | None = None,
    ) -> None:
        insert = f"INSERT IGNORE INTO {self._names.hash} (hi, lo) VALUES (%s, %s)"
        delete = f"DELETE FROM {self._names.hash} WHERE (hi, lo) IN ("
        with transaction(db), db.cursor() as cursor:
            check_lease(db, self._names.meta, self._owner)
            if added:
                cursor.executemany(insert, _signed(added))
            words = _signed(removed)
            for start in range(0, len(words), 1000):
                part = ", ".join(f"({hi}, {lo})" for hi, lo in words[start : start + 1000])
                cursor.execute(f"{delete}{part})")
            if position is not None:
                write_metadata(db, self._names.meta, "indexed", position.encode())


def _signed(hashes: Sequence[tuple[int, int]]) -> Any:
    return to_signed(np.array(sorted(hashes), dtype=np.uint64).reshape(-1, 2)).tolist()
