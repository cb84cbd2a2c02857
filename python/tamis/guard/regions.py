"""Locks by region of the hash space, and what is under way in them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from tamis.stores.contract import Hashes, Store

REGIONS = 64
_SHIFT = np.uint64(64 - 6)


class Regions:
    """One lock per region orders puts, deletes and adaptations of the keys in it.

    Each region counts the writes that ended in it. A reader that found the same count before it
    read the store and after it got the lock knows that no write came between.
    """

    def __init__(self) -> None:
        self._locks = [threading.RLock() for _ in range(REGIONS)]
        self._counts = [0] * REGIONS

    @staticmethod
    def of(hashes: Hashes) -> list[int]:
        """Return the region of each hash."""
        regions: list[int] = (hashes[:, 0] >> _SHIFT).tolist()
        return regions

    @contextmanager
    def held(self, regions: Sequence[int] | None = None) -> Iterator[None]:
        """Hold these regions, or all, always in the same order."""
        with ExitStack() as stack:
            for region in range(REGIONS) if regions is None else sorted(set(regions)):
                stack.enter_context(self._locks[region])
            yield

    @contextmanager
    def written(self, regions: Sequence[int] | None = None) -> Iterator[None]:
        """Hold regions for a write, and count it."""
        with self.held(regions):
            try:
                yield
            finally:
                for region in range(REGIONS) if regions is None else set(regions):
                    self._counts[region] += 1

    def counts(self, regions: Sequence[int]) -> list[int]:
        """Return the count of each region."""
        return [self._counts[region] for region in regions]


class Remote:
    """The stored hashes as a filter sees them: the store's index and the puts under way.

    It lists exactly the hashes that the filter holds and needs, each as often: a filter that tells
    by content whose a slot is would give the slot of another to a hash that it does not hold.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._pending: dict[int, Hashes] = {}

    def run(self, lo: int, hi: int) -> Hashes:
        """Return all hashes whose first word is from ``lo`` to ``hi``, both included."""
        pending = self._under_way()
        within = (pending[:, 0] >= np.uint64(lo)) & (pending[:, 0] <= np.uint64(hi))
        stored = self._store.run(lo, hi)
        return np.concatenate([stored, _except(pending[within], stored)])

    def scan(self) -> Iterator[Hashes]:
        """Go through all hashes."""
        pending = self._under_way()
        for part in self._store.scan():
            pending = _except(pending, part)
            yield part
        yield pending

    def began(self, hashes: Hashes) -> None:
        """Remember the hashes of a put whose keys the filter has and the store has not yet."""
        with self._lock:
            self._pending[id(hashes)] = hashes

    def ended(self, hashes: Hashes) -> None:
        """Forget them."""
        with self._lock:
            self._pending.pop(id(hashes), None)

    def _under_way(self) -> Hashes:
        with self._lock:
            none = np.empty((0, 2), dtype=np.uint64)
            return np.concatenate([none, *self._pending.values()])


class Before:
    """A remote without the hashes that the filter is about to take, which its index has already."""

    def __init__(self, remote: Remote, coming: Hashes) -> None:
        self._remote, self._coming = remote, coming

    def run(self, lo: int, hi: int) -> Hashes:
        """Return the hashes of a range but those to come."""
        return _except(self._remote.run(lo, hi), self._coming)

    def scan(self) -> Iterator[Hashes]:
        """Go through all hashes but those to come."""
        return (_except(part, self._coming) for part in self._remote.scan())


class Nothing:
    """The remote of an empty filter."""

    def run(self, lo: int, hi: int) -> Hashes:
        """Return no hash."""
        return np.empty((0, 2), dtype=np.uint64)

    def scan(self) -> Iterator[Hashes]:
        """Return no hash."""
        return iter(())


def _except(hashes: Hashes, others: Hashes) -> Hashes:
    """Return the hashes that are not among others."""
    if not len(hashes) or not len(others):
        return hashes
    return hashes[~np.isin(_whole(hashes), _whole(others))]


def _whole(hashes: Hashes) -> np.ndarray[Any, Any]:
    """Return each hash as one value of sixteen bytes."""
    return np.ascontiguousarray(hashes).view("V16").ravel()
