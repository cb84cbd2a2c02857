"""One lock per region of the hash space, and the store's hashes as the filter sees them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tamis._locks import Locked
from tamis._native import REGIONS
from tamis.errors import LeaseError
from tamis.stores.contract import HashRows, Store

_Locks = Sequence[threading.RLock]

_SHIFT = np.uint64(64 - REGIONS.bit_length() + 1)


class Regions:
    """Locks that order the puts, deletes and adaptations of the keys in each region.

    Each region counts the writes that ended in it. A reader that sees the same count before it
    reads the store and after it takes the lock knows that no write came in between.

    A query never waits for these locks, since a put holds them while it waits for its commit, and
    so perhaps for a transaction of somebody else: it locks without waiting, or goes without.
    """

    def __init__(self) -> None:
        self._locks = [threading.RLock() for _ in range(REGIONS)]
        self.counts = [0] * REGIONS
        """How many writes have ended in each region, whose lock is held while its count changes."""

    @staticmethod
    def of(hashes: HashRows) -> list[int]:
        """Return the region of each hash."""
        regions: list[int] = (hashes[:, 0] >> _SHIFT).tolist()
        return regions

    @staticmethod
    def near(regions: Iterable[int]) -> list[int]:
        """Return regions and their neighbours, in order: a run of hashes may begin in one of them.

        That holds for filters with more quotients than there are regions.
        """
        near = {region + step for region in regions for step in (-1, 0, 1)}
        return sorted(region for region in near if 0 <= region < REGIONS)

    def locked(
        self, regions: Sequence[int] | None = None, *, wait: bool = True, also: _Locks = ()
    ) -> Locked:
        """Lock these regions, or all, always in the same order, and then ``also`` other locks.

        Without ``wait``, lock them if nobody else holds one of them.
        """
        return Locked([*(self._locks[i] for i in _ordered(regions)), *also], wait=wait)

    def write_locked(self, regions: Sequence[int] | None = None) -> Locked:
        """Lock regions, given in order, for a write, and count the write."""
        some = range(REGIONS) if regions is None else regions
        return Locked([self._locks[i] for i in some], count=(self.counts, some))


def _ordered(regions: Sequence[int] | None) -> Sequence[int]:
    return range(REGIONS) if regions is None else sorted(set(regions))


class Remote:
    """The remote that a filter adapts with: the hashes in the store's index and of pending puts.

    It lists exactly the hashes that the filter holds, each as often. Filters match slots to hashes
    by content, so a listed hash that the filter does not hold would be given another hash's slot.

    Another guard that takes the lease may index the keys by another hash, from which a filter must
    neither grow nor remove. So a read counts only if the guard still holds the lease after it;
    otherwise `LeaseError` is raised.
    """

    def __init__(self, store: Store, holds_lease: Callable[[], bool]) -> None:
        self._store, self._holds_lease = store, holds_lease
        self._lock = threading.Lock()
        self._pending: dict[int, HashRows] = {}

    def run(self, lo: int, hi: int) -> HashRows:
        """Return all hashes whose first word is from ``lo`` to ``hi``, both included."""
        pending = self._pending_rows()
        stored = self._store.run(lo, hi)
        self._check_lease()
        return _with_pending(stored, pending, lo, hi)

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return `run` of each range, from one request to the store."""
        pending = self._pending_rows()
        runs = self._store.runs(ranges)
        self._check_lease()
        return [
            _with_pending(stored, pending, lo, hi)
            for stored, (lo, hi) in zip(runs, ranges, strict=True)
        ]

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        pending = self._pending_rows()
        for part in self._store.scan():
            pending = _without(pending, part)
            yield part
        self._check_lease()
        yield pending

    def _check_lease(self) -> None:
        if not self._holds_lease():
            raise LeaseError("the lease expired while the store's index was read")

    def begin_put(self, hashes: HashRows) -> None:
        """Add the hashes of a put, which the filter has and the store does not have yet."""
        with self._lock:
            self._pending[id(hashes)] = hashes

    def end_put(self, hashes: HashRows) -> None:
        """Drop the hashes of a put that was committed or failed."""
        with self._lock:
            self._pending.pop(id(hashes), None)

    def _pending_rows(self) -> HashRows:
        with self._lock:
            none = np.empty((0, 2), dtype=np.uint64)
            return np.concatenate([none, *self._pending.values()])


class RemoteWithout:
    """A remote without the hashes that the store has indexed but the filter does not have yet."""

    def __init__(self, remote: Remote, excluded: HashRows) -> None:
        self._remote, self._rows = remote, excluded
        self._excluded = np.ones(len(excluded), np.bool_)

    def include(self, rows: Sequence[int]) -> None:
        """List some of the excluded hashes, by their numbers, which the filter has now."""
        if len(rows) == len(self._rows):
            self._excluded[:] = False
        else:
            self._excluded[rows] = False

    def run(self, lo: int, hi: int) -> HashRows:
        """Return the hashes of a range, without the excluded ones."""
        return _without(self._remote.run(lo, hi), self._rows[self._excluded])

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return the hashes of each range, without the excluded ones."""
        excluded = self._rows[self._excluded]
        return [_without(run, excluded) for run in self._remote.runs(ranges)]

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, without the excluded ones."""
        excluded = self._rows[self._excluded]
        return (_without(part, excluded) for part in self._remote.scan())


class EmptyRemote:
    """The remote of an empty filter."""

    def run(self, lo: int, hi: int) -> HashRows:
        """Return no hashes."""
        return np.empty((0, 2), dtype=np.uint64)

    def scan(self) -> Iterator[HashRows]:
        """Return no hashes."""
        return iter(())


def _with_pending(stored: HashRows, pending: HashRows, lo: int, hi: int) -> HashRows:
    """Return the stored hashes of a range, and the pending ones in it that are not stored yet."""
    if not len(pending):
        return stored
    within = (pending[:, 0] >= np.uint64(lo)) & (pending[:, 0] <= np.uint64(hi))
    return np.concatenate([stored, _without(pending[within], stored)])


def _without(hashes: HashRows, others: HashRows) -> HashRows:
    """Return the hashes that are not among ``others``."""
    if not len(hashes) or not len(others):
        return hashes
    return hashes[~np.isin(_single_values(hashes), _single_values(others))]


def _single_values(hashes: HashRows) -> np.ndarray[Any, Any]:
    """Return each hash as one sixteen-byte value."""
    return np.ascontiguousarray(hashes).view("V16").ravel()
