"""`Guard`: answers queries from the filter and the store, writes to both, and counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from tamis._types import FilePath, Key, Keys
from tamis.filters.telescoping import AdaptiveQuotient
from tamis.guard.filling import adapts, insert
from tamis.guard.keys import apply_by_type, to_list
from tamis.guard.limit import Limit
from tamis.guard.regions import REGIONS
from tamis.guard.statistics import Counters, GuardStats, History, RateMonitor, Window
from tamis.guard.trust import Trust
from tamis.pictures import draw_history
from tamis.stores.contract import HashRows, PlainKey, Store, Value, check_store, plain_key

_log = logging.getLogger("tamis.guard")


class Guard:
    """A filter in front of a store: queries that the filter answers "no" never reach the store.

    ``filter`` is an empty filter that supports insertion, which the guard fills from the store, or
    a filter of all the store's keys, which the guard checks. If it is adaptive, the guard feeds
    false positives back to it.

    ``snapshot`` is a file that keeps the filter between runs; without it, opening reads all keys.
    ``key`` is the filter's secret key, if it has one; the store keeps it for the next run.
    ``lease`` is how many seconds other guards must wait to write after this one crashed.
    ``adaptations_per_second`` limits the work that hostile queries can cause.
    ``on_rate`` is called with a `GuardStats` of recent queries when their false-positive rate rises
    above the expected one, and again when it is back to normal; by default a warning is logged.

    >>> import tamis
    >>> g = Guard(tamis.stores.Memory(), tamis.Quotient(capacity=1000, fpr=2**-8))
    >>> g.put_many({"ada": "1815", "grace": "1906"})
    >>> g.get("ada"), g.get("alan"), "grace" in g
    ('1815', None, True)
    >>> g.delete("grace")
    True
    >>> g.stats.queries, g.stats.reads_saved
    (3, 1)
    """

    def __init__(
        self,
        store: Store,
        filter: Any,
        *,
        snapshot: FilePath | None = None,
        key: bytes | None = None,
        lease: float = 10.0,
        adaptations_per_second: float | None = None,
        on_rate: Callable[[GuardStats], object] | None = None,
    ) -> None:
        """Load the filter from the snapshot, or from the store's keys if the snapshot is unusable.

        If another guard holds the lease, this one answers queries but cannot write.
        """
        check_store(store)
        if not lease > 0:
            raise ValueError(f"lease must be a number of seconds above 0, not {lease!r}")
        if adaptations_per_second is not None and not adaptations_per_second >= 0:
            raise ValueError(
                "adaptations_per_second must be 0 or more, or None for no limit, not "
                f"{adaptations_per_second!r}"
            )
        self.store = store
        self._limit = Limit(adaptations_per_second)
        self._on_rate, self._monitor, self._history = on_rate, RateMonitor(), History()
        self._counters = Counters()
        self._trust = Trust(
            store, filter, self._counters, key=key, lease=float(lease), snapshot=snapshot
        )

    @property
    def filter(self) -> Any:
        """The current filter; a rebuild replaces it with a new one."""
        return self._trust.filter

    # Queries.

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, or `None` if it is absent."""
        if not self._trust.is_current():
            value = self.store.get_many([plain_key(key)])[0]
            self._counters.count(queries=1, passed=1)
            return value
        if key not in self.filter:
            self._record(1, 1, 0, [])
            return None
        hashes = self._trust.hashes([key])
        counts = self._trust.regions.counts(self._trust.regions.of(hashes))
        value = self.store.get_many([plain_key(key)])[0]
        if value is not None:
            self._record(1, 0, 1, [])
            return value
        self._record(1, 0, 0, hashes[:, 1].tolist())
        self._adapt([key], hashes, counts)
        return None

    def get_many(self, keys: Keys) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        given = to_list(keys)
        if not self._trust.is_current():
            values = self.store.get_many([plain_key(key) for key in given])
            self._counters.count(queries=len(given), passed=len(given))
            return values
        answers: list[Value | None] = [None] * len(given)
        indices = self._positives(given)
        maybe = [given[i] for i in indices]
        hashes = self._trust.hashes(maybe)
        counts = self._trust.regions.counts(self._trust.regions.of(hashes))
        values = self.store.get_many([plain_key(key) for key in maybe])
        wrong = [i for i, value in enumerate(values) if value is None]
        for i, value in zip(indices, values, strict=True):
            answers[i] = value
        saved, found = len(given) - len(indices), len(indices) - len(wrong)
        self._record(len(given), saved, found, hashes[wrong, 1].tolist())
        if wrong:
            self._adapt([maybe[i] for i in wrong], hashes[wrong], [counts[i] for i in wrong])
        return answers

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[PlainKey]:
        """Iterate over the keys of the store, text as bytes."""
        _, parts = self.store.contents()
        for part in parts:
            yield from part

    # Writes.

    def put(self, key: Key, value: Value) -> None:
        """Write a key and its value."""
        self.put_many({key: value})

    def put_many(self, items: Any) -> None:
        """Write keys and values, given as a mapping or as pairs, in one commit."""
        pairs: Iterable[tuple[Key, Value]] = items.items() if hasattr(items, "items") else items
        values: dict[PlainKey, Value] = {}
        for key, value in pairs:
            if not isinstance(value, (bytes, str)):
                raise TypeError(
                    f"the value of key {key!r} must be bytes or str, not {value!r} "
                    f"(of type {type(value).__name__})"
                )
            values[plain_key(key)] = value
        if not values:
            return
        keys = list(values)
        hashes = self._trust.hashes(keys)
        self._trust.require_lease()
        with self._trust.regions.write_locked(self._write_regions(hashes)):
            new = self._new_keys(keys)
            fresh = hashes[new]
            if new:
                self._insert([keys[i] for i in new], fresh)
            try:
                self._trust.commit(
                    lambda owner: self.store.put_many(keys, list(values.values()), owner)
                )
            finally:
                self._trust.remote.end_put(fresh)

    def delete(self, key: Key) -> bool:
        """Delete a key; return whether it was present."""
        return self.delete_many([plain_key(key)])[0]  # type: ignore[arg-type]

    def delete_many(self, keys: Keys) -> list[bool]:
        """Delete keys in one commit; return for each whether it was present."""
        given = [plain_key(key) for key in to_list(keys)]
        distinct = list(dict.fromkeys(given))
        if not distinct:
            return []
        hashes = self._trust.hashes(distinct)
        self._trust.require_lease()
        with self._trust.regions.write_locked(self._write_regions(hashes)):
            commit = self._trust.commit(lambda owner: self.store.delete_many(distinct, owner))
            existed = dict(zip(distinct, commit.existed, strict=True))
            self._trust.remove([key for key in distinct if existed[key]])
        # A key that is given twice is present only the first time.
        return [existed.pop(key, False) for key in given]

    # State.

    @property
    def stats(self) -> GuardStats:
        """Counts of queries, reads saved and false positives so far."""
        return self._counters.read(
            trusted=self._trust.trusted, expected_fpr=self.filter.expected_fpr
        )

    def rebuild(self) -> None:
        """Rebuild the filter from the store's keys, or check it if the guard was given a full one.

        Queries continue meanwhile, against the store; writes wait.
        """
        self._trust.rebuild()

    def save(self) -> None:
        """Write the snapshot now."""
        self._trust.save()

    @property
    def history(self) -> list[Window]:
        """The false-positive rate over time, in windows of consecutive queries."""
        return self._history.read()

    def plot(self, ax: Any = None) -> Any:
        """Plot the observed and the expected false-positive rate over time; return the axes."""
        return draw_history(self.history, self.filter.expected_fpr, ax)

    def close(self) -> None:
        """Write the snapshot if there is a path for it, release the lease and close the store."""
        if self._trust.closed:
            return
        try:
            self._trust.close()
        finally:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        s = self.stats
        return (
            f"<tamis.Guard: {type(self.filter).__name__} in front of {type(self.store).__name__}, "
            f"{s.queries:,} queries, {s.reads_saved:,} reads saved, "
            f"{s.false_positives:,} reads wasted>"
        )

    # The filter.

    def _write_regions(self, hashes: HashRows) -> list[int] | None:
        # In a shared table a write may first have to replay others' changes, in any region.
        return None if self.store.shared else self._trust.regions.of(hashes)

    def _positives(self, keys: Sequence[Any]) -> list[int]:
        """Return the indices of the keys that the filter accepts."""
        indices: list[int] = np.flatnonzero(apply_by_type(self.filter.contains, keys)).tolist()
        return indices

    def _new_keys(self, keys: list[PlainKey]) -> list[int]:
        """Return the indices of the keys that the store, and so the filter, does not have yet."""
        maybe = self._positives(keys)
        values = self.store.get_many([keys[i] for i in maybe])
        present = {i for i, value in zip(maybe, values, strict=True) if value is not None}
        return [i for i in range(len(keys)) if i not in present]

    def _insert(self, keys: list[PlainKey], hashes: HashRows) -> None:
        with self._trust.changing:
            insert(self.filter, keys, self._trust.remote)
            # Only now: the remote must not list a hash that the filter does not hold.
            self._trust.remote.begin_put(hashes)

    def _adapt(self, keys: list[Any], hashes: HashRows, counts: list[int]) -> None:
        """Adapt the filter to false positives, except where a write came after the query."""
        if not (adapts(self.filter) and self._trust.holds_lease() and self._trust.attached):
            return
        allowed = self._limit.take(len(keys))
        regions = self._trust.regions.of(hashes[:allowed])
        with self._trust.regions.locked(self._adapted_regions(regions)), self._trust.changing:
            latest = self._trust.regions.counts(regions)
            unchanged = [
                key
                for key, before, after in zip(keys[:allowed], counts[:allowed], latest, strict=True)
                if before == after
            ]
            adapted = 0
            if unchanged and self._trust.trusted:
                adapted = int(np.sum(apply_by_type(self._adapt_many, unchanged)))
        self._counters.count(adaptations=adapted, adaptations_skipped=len(keys) - adapted)

    def _adapt_many(self, keys: Sequence[Any]) -> Any:
        return self.filter.adapt_many(keys, self._trust.remote)

    def _adapted_regions(self, regions: list[int]) -> list[int] | None:
        """Return the regions that an adaptation may change; `None` is all of them.

        A quotient filter's run may reach into the next region; other filters move keys anywhere.
        """
        small = self.filter.capacity < REGIONS * 256
        if small or not isinstance(self.filter, AdaptiveQuotient):
            return None
        near = {region + step for region in regions for step in (-1, 0, 1)}
        return [region for region in near if 0 <= region < REGIONS]

    def _record(self, queries: int, saved: int, found: int, wrong: list[int]) -> None:
        """Count queries; ``wrong`` has a word of the hash of each false positive.

        Report when the rate of recent queries rises above the expected one, and when it is back.
        """
        self._counters.count(
            queries=queries,
            reads_saved=saved,
            true_positives=found,
            false_positives=len(wrong),
        )
        self._counters.count_repeats(wrong)
        self._history.record(queries, saved + len(wrong), len(wrong))
        window = self._monitor.record(saved, wrong, lambda: self.filter.expected_fpr)
        if window is None:
            return
        if self._on_rate is not None:
            self._on_rate(window)
            return
        _log.warning(
            "false-positive rate is %s: %.3g observed (%.3g to %.3g), %.3g expected",
            "above the expected one" if self._monitor.above else "back to normal",
            window.observed_fpr,
            *window.interval,
            window.expected_fpr,
        )
