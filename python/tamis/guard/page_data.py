"""Data of a guard's page: its statistics over time, and predictions for other filters.

Both are bounded: a series of at most 600 points, and a sample of at most 20,000 queries.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tamis.guard.guard import Guard
    from tamis.guard.statistics import GuardStats

_MAX_POINTS = 600
_MAX_QUERIES = 20_000
_MIN_QUERIES = 500
"""Sampled queries for absent keys that a comparison of filters needs."""


class Point(NamedTuple):
    """The statistics of a guard at a time, in seconds since the page was opened."""

    time: float
    queries: int
    reads_saved: int
    false_positives: int
    passed: int
    adaptations: int
    rebuilds: int
    memory: int
    trusted: bool
    expected_fpr: float


class Series:
    """The statistics over time; when there are too many points, every other one is dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._points: list[Point] = []
        self._step, self._count = 1, 0

    def record(self, stats: GuardStats) -> None:
        """Add the statistics as they are now."""
        fields = {name: getattr(stats, name) for name in Point._fields[1:]}
        with self._lock:
            if self._count % self._step == 0:
                self._points.append(Point(time.monotonic() - self._start, **fields))
            self._count += 1
            if len(self._points) > _MAX_POINTS:
                del self._points[1::2]
                self._step *= 2

    def read(self) -> list[Point]:
        """Return the points so far."""
        with self._lock:
            return list(self._points)


class Sample:
    """Every n-th query for an absent key; when there are too many, n is doubled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: list[Any] = []
        self._step, self._count = 1, 0

    def add(self, keys: Iterable[Any]) -> None:
        """Add keys that the store does not have."""
        with self._lock:
            for key in keys:
                self._count += 1
                if self._count % self._step == 0:
                    self._queries.append(key)
                    if len(self._queries) >= _MAX_QUERIES:
                        self._queries = self._queries[1::2]
                        self._step *= 2

    def read(self) -> list[Any]:
        """Return the sampled queries."""
        with self._lock:
            return list(self._queries)

    def watch_get(self, get: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that calls ``get`` and samples the keys that it does not find."""

        def watched(key: Any) -> Any:
            value = get(key)
            if value is None:
                self.add((key,))
            return value

        return watched

    def watch_get_many(self, get_many: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
        """Return a function that calls ``get_many`` and samples the keys that it does not find."""

        def watched(keys: Any) -> list[Any]:
            from tamis.guard.keys import to_list

            given = to_list(keys)
            values = get_many(given)
            self.add(key for key, value in zip(given, values, strict=True) if value is None)
            return values

        return watched


def compare_filters(guard: Guard, queries: list[Any]) -> dict[str, Any] | None:
    """Predict the false-positive rates of other filters of the same size for these queries.

    `None` if there are too few queries, or no filter of this size fits.
    """
    from tamis import Workload, advise

    plain = [guard._to_plain(key) for key in queries]
    kinds = [[key for key in plain if isinstance(key, kind)] for kind in (bytes, int)]
    known: Any = max(kinds, key=len)  # a workload has keys of one type
    filter, stats = guard.filter, guard.stats
    keys = len(filter)
    if len(known) < _MIN_QUERIES or not keys:
        return None
    needs = {"store"}
    if filter.inserts:
        needs.add("insert")
    try:
        advice = advise(
            keys,
            Workload.from_queries(known),
            bits_per_key=filter.size_in_bits / keys,
            expected_queries=max(stats.negatives, len(known)),
            present=stats.true_positives / max(stats.queries, 1),
            needs=needs,
        )
    except ValueError:
        return None
    return {
        "queries": len(known),
        "choices": [
            {
                "name": choice.name,
                "filter": choice.filter,
                "rate": float(choice.expected_fpr),
                "bits_per_key": float(choice.bits_per_key),
                "reason": choice.reason,
            }
            for choice in advice.choices
        ],
    }
