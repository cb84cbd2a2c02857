"""The index of hashes of a table that others write, for filters that adapt.

A table of the two words of each key's hash, and nothing else. The guard that holds the lease builds
it from a snapshot, without blocking writers, and from then on applies the changes: to a tail in
memory, and some thousand at a time to the table. The metadata name the hasher (``index``)
and the position that the table has reached (``indexed``), from which the next holder goes on. All
changes are idempotent, so a write whose outcome is unknown is repeated.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tamis.errors import LeaseError
from tamis.stores.base import BATCH, Changes, Hasher, HashRows, PlainKey, lease_error
from tamis.stores.encoding import SIGN, from_signed, to_signed
from tamis.stores.postgres.columns import Array
from tamis.stores.postgres.connections import Connections, run_script
from tamis.stores.postgres.follower import Follower, Position
from tamis.stores.tail import MAX_TAIL, View

_ROW = np.dtype(
    [("fields", ">i2"), ("hi_size", ">i4"), ("hi", ">i8"), ("lo_size", ">i4"), ("lo", ">i8")]
)
"""A row of two bigints in the binary form of COPY."""

_COPY_HEAD, _COPY_END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"


class HashIndex:
    """The index of a followed table. It is thread-safe."""

    def __init__(self, connections: Connections, follower: Follower) -> None:
        self._connections, self._follower = connections, follower
        self.forget()

    def forget(self) -> None:
        """Be another guard's, which has not attached, in a forked child."""
        self._lock, self._tail_lock = threading.RLock(), threading.Lock()
        self._owner: bytes | None = None
        self._hasher: Hasher
        self._name = b""
        self._position = ""
        self._stale = False
        self._tail: dict[tuple[int, int], bool] = {}

    def attach(self, owner: bytes, hasher: Hasher, name: bytes) -> None:
        """Maintain the index from now on; build it if it cannot be brought up to date."""
        with self._lock:
            self._owner, self._hasher, self._name = owner, hasher, name
            try:
                with self._connections.lend() as db:
                    self._check_lease(db)
                    query = (
                        f"SELECT name, value FROM {self._meta} WHERE name IN ('index', 'indexed')"
                    )
                    known = {each: bytes(value) for each, value in db.execute(query).fetchall()}
                self._position, self._tail = known.get("indexed", b"").decode(), {}
                changes = None
                if known.get("index") == name:
                    changes = self._follower.changes(self._position)
                if changes is None:
                    self._build()
                else:
                    self._apply(changes)
                    self._write()
            except BaseException:
                self._owner = None
                raise

    def follow(self, since: str, changes: Changes | None) -> None:
        """Let the index follow changes that the guard is given; `None` if they are unknown."""
        if self._owner is None:
            return
        with self._lock:
            if self._owner is None or self._stale:
                return
            if changes is not None and since != self._position:
                changes = self._follower.changes(self._position)
            if changes is None:
                self._stale = True
                return
            self._apply(changes)
            if len(self._tail) >= MAX_TAIL and not changes.more:
                self._write_or_detach()

    def restore(self) -> None:
        """Build the index again if it has lost track, before the guard reads the keys again."""
        with self._lock:
            if self._owner is not None and self._stale:
                try:
                    self._build()
                except LeaseError:
                    self._owner = None

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return the hashes of each range of first words."""
        # The tail first: a hash that moves to the table meanwhile is then in both, not in neither.
        views = self._views(ranges)
        bounds = [
            Array("bigint", [word - SIGN for word in words]) for words in zip(*ranges, strict=True)
        ]
        if not bounds:
            return []
        query = (
            f"SELECT r.n, h.hi, h.lo FROM unnest(%b::bigint[], %b::bigint[]) WITH ORDINALITY "
            f"AS r (lo, hi, n) JOIN {self._hash} AS h ON h.hi BETWEEN r.lo AND r.hi"
        )
        with self._connections.lend() as db:
            found = db.execute(query, bounds, binary=True).fetchall()
        stored: list[list[Any]] = [[] for _ in ranges]
        for n, *words in found:
            stored[n - 1].append(words)
        return [view.apply(from_signed(rows)) for view, rows in zip(views, stored, strict=True)]

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        return self._views([(0, 2**64 - 1)])[0].apply_to_parts(self._read())

    @property
    def _hash(self) -> str:
        return self._follower.definition.part("hash")

    @property
    def _meta(self) -> str:
        return self._follower.definition.part("meta")

    def _read(self) -> Iterator[HashRows]:
        query = f"SELECT hi, lo FROM {self._hash} {{}} ORDER BY hi, lo LIMIT {BATCH}"
        first, later = query.format(""), query.format("WHERE (hi, lo) > (%s, %s)")
        with self._connections.lend() as db:
            rows = db.execute(first).fetchall()
        while rows:
            yield from_signed(rows)
            with self._connections.lend() as db:
                rows = db.execute(later, rows[-1]).fetchall()

    def _views(self, ranges: Sequence[tuple[int, int]]) -> list[View]:
        if self._owner is None:
            raise lease_error("")
        with self._tail_lock:
            hashes = sorted(self._tail)
            views = []
            for lo, hi in ranges:
                part = hashes[bisect_left(hashes, (lo, 0)) : bisect_left(hashes, (hi + 1, 0))]
                added = [each for each in part if self._tail[each]]
                views.append(View(added, [each for each in part if not self._tail[each]]))
            return views

    def _apply(self, changes: Changes) -> None:
        with self._tail_lock:
            for keys, present in ((changes.removed, False), (changes.added, True)):
                for hash in self._hashes(keys).tolist():
                    self._tail[tuple(hash)] = present
            self._position = changes.position

    def _hashes(self, keys: Sequence[PlainKey]) -> HashRows:
        return self._hasher(keys) if keys else np.empty((0, 2), np.uint64)

    def _write_or_detach(self) -> None:
        try:
            self._write()
        except LeaseError:
            self._owner = None

    def _write(self) -> None:
        """Write the tail to the table; `LeaseError` without the lease."""
        tail = dict(self._tail)
        rows = "unnest(%b::bigint[], %b::bigint[]) AS new (hi, lo)"
        statements = {
            False: f"DELETE FROM {self._hash} AS old USING {rows} "
            "WHERE (old.hi, old.lo) = (new.hi, new.lo)",
            True: f"INSERT INTO {self._hash} SELECT * FROM {rows} ON CONFLICT DO NOTHING",
        }
        with self._connections.lend() as db, db.transaction():
            self._check_lease(db)
            for present, statement in statements.items():
                hashes = sorted(each for each, is_present in tail.items() if is_present == present)
                if hashes:
                    words = to_signed(np.array(hashes, np.uint64))
                    arrays = [Array("bigint", words[:, i]) for i in (0, 1)]
                    db.execute(statement, arrays)
            self._write_meta(db, "indexed", self._position.encode())
        self._register()
        with self._tail_lock:
            self._tail = {}

    def _register(self) -> None:
        """Keep the journal from the index's position on, for its next holder."""
        position = Position.parse(self._position)
        if position is not None:
            with self._connections.lend() as db:
                run_script(db, *self._follower.registration(position, "index"))

    def _build(self) -> None:
        """Build the index from a snapshot, in batches."""
        meta, table = self._meta, self._hash
        with self._connections.lend() as db, db.transaction():
            self._check_lease(db)
            db.execute(f"DELETE FROM {meta} WHERE name IN ('index', 'indexed')")
            db.execute(f"DROP TABLE IF EXISTS {table}")
            db.execute(f"CREATE TABLE {table} (hi bigint, lo bigint)")
        position, parts = self._follower.contents()
        for keys in parts:
            with self._connections.lend() as db, db.transaction():
                self._check_lease(db)
                copy_hashes(db, table, self._hashes(keys))
        with self._connections.lend() as db, db.transaction():
            self._check_lease(db)
            db.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (hi, lo)")
            self._write_meta(db, "index", self._name)
            self._write_meta(db, "indexed", str(position).encode())
        with self._tail_lock:
            self._tail, self._position, self._stale = {}, str(position), False
        self._register()

    def _write_meta(self, db: Any, name: str, value: bytes) -> None:
        db.execute(
            f"INSERT INTO {self._meta} VALUES (%s, %s) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def _check_lease(self, db: Any) -> None:
        query = f"SELECT value FROM {self._meta} WHERE name = 'lease' FOR SHARE"
        row = db.execute(query).fetchone()
        if row is None or bytes(row[0]) != self._owner:
            raise lease_error(None if row is None else "")


def copy_hashes(db: Any, table: str, hashes: HashRows) -> None:
    """Append hashes to a table."""
    words = to_signed(hashes)
    rows = np.empty(len(words), _ROW)
    rows["fields"], rows["hi_size"], rows["lo_size"] = 2, 8, 8
    rows["hi"], rows["lo"] = words[:, 0], words[:, 1]
    with db.cursor().copy(f"COPY {table} (hi, lo) FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(_COPY_HEAD + rows.tobytes() + _COPY_END)
