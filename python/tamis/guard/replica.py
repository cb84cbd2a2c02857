"""The filter as a replica of the store's keys: its locks, its remote, and how changes get into it.

*Locks.* One lock per region of the hash space orders the puts, deletes and adaptations of the keys
in it. They are taken in this order: regions, then ``committing``, then ``changing``. A query takes
them only if it need not wait, as a put holds them while it waits for its commit.

*The remote.* A filter that adapts matches its slots to hashes by content, so its remote must list
exactly the hashes that it holds, each as often: the store's index, and the ghosts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tamis._locks import Locked
from tamis._native import REGIONS, Gate
from tamis.errors import CapacityError, LeaseError
from tamis.filters.adaptive_stacked import AdaptiveStacked
from tamis.filters.telescoping import AdaptiveQuotient
from tamis.stores.base import HashRows, PlainKey, Store

_Locks = Sequence[threading.RLock]

_SHIFT = np.uint64(64 - REGIONS.bit_length() + 1)


class Regions:
    """The locks of the regions, and how many writes have ended in each.

    A reader that sees the same count before it reads the store and after it takes the lock knows
    that no write came in between.
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
        some = range(REGIONS) if regions is None else sorted(set(regions))
        return Locked([*(self._locks[i] for i in some), *also], wait=wait)

    def write_locked(self, regions: Sequence[int] | None = None) -> Locked:
        """Lock regions, given in order, for a write, and count the write."""
        some = range(REGIONS) if regions is None else regions
        return Locked([self._locks[i] for i in some], count=(self.counts, some))


def run_regions(filter: Any, regions: list[int]) -> list[int] | None:
    """Return the regions that can share runs with these regions; `None` means all of them.

    A run of a quotient filter may reach into the next region; other filters move keys anywhere.
    """
    small = filter.capacity < REGIONS * 256
    return None if small or not isinstance(filter, AdaptiveQuotient) else Regions.near(regions)


class Remote:
    """The remote that a filter adapts with: the hashes in the store's index and of ghosts.

    Another guard that takes the lease may index the keys by another hash, from which a filter must
    neither grow nor remove. So a read counts only if the guard still holds the lease after it;
    otherwise `LeaseError` is raised.
    """

    def __init__(self, store: Store, holds_lease: Callable[[], bool]) -> None:
        self._store, self._holds_lease = store, holds_lease
        self._lock = threading.Lock()
        self._ghosts: dict[object, HashRows] = {}

    def run(self, lo: int, hi: int) -> HashRows:
        """Return all hashes whose first word is from ``lo`` to ``hi``, both included."""
        ghosts = self._ghost_rows()
        stored = self._store.run(lo, hi)
        self._check_lease()
        return _with_ghosts(stored, ghosts, lo, hi)

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return `run` of each range, from one request to the store."""
        ghosts = self._ghost_rows()
        runs = self._store.runs(ranges)
        self._check_lease()
        return [
            _with_ghosts(stored, ghosts, lo, hi)
            for stored, (lo, hi) in zip(runs, ranges, strict=True)
        ]

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        ghosts = self._ghost_rows()
        for part in self._store.scan():
            ghosts = _without(ghosts, part)
            yield part
        self._check_lease()
        yield ghosts

    def _check_lease(self) -> None:
        if not self._holds_lease():
            raise LeaseError("the lease expired while the store's index was read")

    def add_ghosts(self, name: object, hashes: HashRows) -> None:
        """Add hashes that the filter has and the store's index does not have yet."""
        with self._lock:
            self._ghosts[name] = hashes

    def drop_ghosts(self, names: Iterable[object] | None = None) -> None:
        """Drop hashes by the names they were added with, or all."""
        with self._lock:
            if names is None:
                self._ghosts.clear()
            for name in names or ():
                self._ghosts.pop(name, None)

    def _ghost_rows(self) -> HashRows:
        with self._lock:
            none = np.empty((0, 2), dtype=np.uint64)
            return np.concatenate([none, *self._ghosts.values()])


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


def _with_ghosts(stored: HashRows, ghosts: HashRows, lo: int, hi: int) -> HashRows:
    """Return the stored hashes of a range, and the ghosts in it that are not stored yet."""
    if not len(ghosts):
        return stored
    within = (ghosts[:, 0] >= np.uint64(lo)) & (ghosts[:, 0] <= np.uint64(hi))
    return np.concatenate([stored, _without(ghosts[within], stored)])


def _without(hashes: HashRows, others: HashRows) -> HashRows:
    """Return the hashes that are not among ``others``."""
    if not len(hashes) or not len(others):
        return hashes
    return hashes[~np.isin(_single_values(hashes), _single_values(others))]


def _single_values(hashes: HashRows) -> np.ndarray[Any, Any]:
    """Return each hash as one sixteen-byte value."""
    return np.ascontiguousarray(hashes).view("V16").ravel()


def split_by_type(keys: Sequence[Any]) -> list[Sequence[int]]:
    """Return the indices of the integer keys and of the text keys, without empty lists."""
    if len({*map(type, keys)}) == 1:
        return [range(len(keys))]
    parts: tuple[list[int], list[int]] = ([], [])
    for i, key in enumerate(keys):
        parts[isinstance(key, (str, bytes))].append(i)
    return [part for part in parts if part]


def apply_by_type(function: Callable[[Sequence[Any]], Any], keys: Sequence[Any]) -> Any:
    """Call a function that takes keys of one type, once per type if the keys are mixed."""
    try:
        return function(keys)
    except TypeError:
        if len(parts := split_by_type(keys)) < 2:
            raise
    answers = [function([keys[i] for i in part]) for part in parts]
    return np.concatenate(answers)[np.argsort(np.concatenate(parts))]


def insert(filter: Any, keys: list[Any], remote: Any) -> None:
    """Insert keys into a filter, all or none; one that adapts also gets the remote, if any."""
    if not filter.inserts:
        raise TypeError(
            f"a {type(filter).__name__} filter does not support insertion; guard a set that "
            "changes with a filter that does, such as tamis.Quotient"
        )
    more = (remote,) if remote is not None and filter.adapts else ()
    if len(keys) == 1:
        filter.add(keys[0], *more)
        return
    done: list[list[Any]] = []
    for part in split_by_type(keys):
        some = keys if len(part) == len(keys) else [keys[i] for i in part]
        try:
            filter.update(some, *more)
        except CapacityError:
            for earlier in done if filter.deletes else ():
                filter.remove_many(earlier, *more)
            raise
        done.append(some)
        if isinstance(remote, RemoteWithout):
            # The filter may grow for the next part, from the hashes that the remote lists.
            remote.include(part)


class Replica:
    """The filter of a guard, with its locks and its remote."""

    gate: Gate
    """The gate of the filter, once there is a filter."""

    def __init__(self, store: Store, holds_lease: Callable[[], bool]) -> None:
        self.remote = Remote(store, holds_lease)
        self.regions = Regions()
        self.committing = threading.RLock()
        """Held from a commit until its changes are applied, so that they are applied in order."""
        self.changing = threading.RLock()
        """Held while the filter changes."""
        self._version = 0
        """How often changes of others were applied, or the filter was replaced."""

    @property
    def filter(self) -> Any:
        """The current filter."""
        return self.gate.filter

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes when the filter grows, is replaced, or follows others."""
        return self.filter.capacity, self._version

    def all_locked(self, *, wait: bool = True) -> Locked:
        """Take all locks; without ``wait``, only if nobody else holds one of them."""
        return self.regions.locked(wait=wait, also=[self.committing])

    def hashes(self, keys: Sequence[Any]) -> HashRows:
        """Hash keys as the filter does."""
        return self.gate.batch(list(keys)).hashes

    def replace(self, filter: Any) -> None:
        """Use another filter, which has no ghosts; this closes the gate."""
        with self.changing:
            self._version += 1
            self.remote.drop_ghosts()
            if filter is not self.filter:
                self.gate.replace(filter)

    def insert_ghosts(
        self, name: object, keys: list[PlainKey], hashes: HashRows, *, indexed: bool
    ) -> None:
        """Insert keys for a put, before they are written to the store."""
        remote = self.remote
        with self.changing:
            filter = self.filter
            if not filter.adapts or not indexed:
                insert(filter, keys, None)
                remote.add_ghosts(name, hashes)
            elif len(keys) == 1:
                insert(filter, keys, remote)
                # Only now: the remote must not list a hash that the filter does not hold.
                remote.add_ghosts(name, hashes)
            else:
                # A filter that grows for the last of these keys needs the hashes of the first ones.
                remote.add_ghosts(name, hashes)
                try:
                    insert(filter, keys, RemoteWithout(remote, hashes))
                except BaseException:
                    remote.drop_ghosts([name])
                    raise

    def keep_ghosts(self, name: object, keys: Sequence[PlainKey]) -> None:
        """Keep the ghosts of a put with an unknown outcome, each under its own name."""
        for key in keys:
            self.remote.add_ghosts(key, self.hashes([key]))
        self.remote.drop_ghosts([name])

    def change(self, filter: Any, added: list[Any], removed: list[Any], *, indexed: bool) -> None:
        """Insert and remove keys, as the store's changes say; the index has these changes."""
        with self.changing:
            self._version += 1
            if added:
                # The index has these hashes already, but the filter does not.
                remote = RemoteWithout(self.remote, self.hashes(added)) if indexed else None
                insert(filter, added, remote)
            self.remove(filter, removed, indexed=indexed)

    def remove_own(self, keys: list[Any], before: tuple[int, int], *, indexed: bool) -> None:
        """Remove keys that this guard has deleted.

        ``before`` is `version` before the delete was committed, with the locks of all regions that
        the keys' runs may be in. If the filter has not grown since and no changes of others were
        applied, each key has a slot, which no other removal can have taken. Then the store's index
        is only needed where the slots that a key fits differ.
        """
        with self.changing:
            filter = self.filter
            if before == self.version and indexed and isinstance(filter, AdaptiveQuotient):
                with suppress(LeaseError):  # of the remote: the keys stay
                    filter._remove_owned(keys, self.remote)
            else:
                self.remove(filter, keys, indexed=indexed)

    def remove(self, filter: Any, keys: list[Any], *, indexed: bool) -> None:
        """Remove keys, which the store no longer has, from a filter that supports it."""
        if not filter.deletes or not keys:
            return
        with self.changing, suppress(LeaseError):  # of the remote: the keys stay
            if indexed or not filter.adapts:
                remote = (self.remote,) if filter.adapts else ()
                apply_by_type(lambda some: filter.remove_many(some, *remote), keys)
                return
            for key in keys:
                # Without the index, an adaptive filter may not know which slot is the key's, and
                # keeps it.
                with suppress(KeyError, ValueError):
                    filter.remove(key)

    def adapt(
        self, keys: list[Any], hashes: HashRows, counts: list[int], allowed: Callable[[], bool]
    ) -> int:
        """Adapt the filter to false positives, except where a write came after the query.

        ``counts`` are the write counts of the regions before the store was read. A write that is
        under way is not waited for. Return how many were adapted to.
        """
        filter, regions = self.filter, self.regions.of(hashes)
        with self.regions.locked(run_regions(filter, regions), wait=False) as locked:
            latest = self.regions.counts
            some = [i for i, r in enumerate(regions) if counts[r] == latest[r]]
            if not (locked and some and allowed()):
                return 0
            # A lease that expired meanwhile costs the adaptation, not the query.
            with self.changing, suppress(LeaseError):
                if isinstance(filter, AdaptiveQuotient | AdaptiveStacked):
                    return int(np.sum(filter._adapt_hashes(hashes[some], self.remote)))
                wrong = [keys[i] for i in some]
                adapted = apply_by_type(lambda part: filter.adapt_many(part, self.remote), wrong)
                return int(np.sum(adapted))
        return 0
