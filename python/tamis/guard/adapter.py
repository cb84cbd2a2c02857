"""How the filter of a guard learns from its false positives."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import numpy as np

from tamis._clock import now
from tamis.errors import LeaseError
from tamis.guard.construction import adapts
from tamis.guard.keys import apply_by_type
from tamis.guard.replica import run_regions
from tamis.guard.statistics import Counters
from tamis.guard.trust import Trust
from tamis.stores.contract import HashRows


class Adapter:
    """Feeds false positives back to the filter, as many per second as the guard allows."""

    def __init__(self, trust: Trust, counters: Counters, per_second: float | None) -> None:
        self._trust, self._replica, self._counters = trust, trust.replica, counters
        self._limit = Limit(per_second)

    def adapt(self, keys: list[Any], hashes: HashRows, counts: list[int]) -> None:
        """Adapt the filter to false positives, except where a write came after the query.

        ``counts`` are the write counts of the regions before the store was read. A write that is
        under way is not waited for.
        """
        replica, freshness, filter = self._replica, self._trust.freshness, self._replica.filter
        if not (adapts(filter) and self._trust.may_adapt()):
            return
        allowed = self._limit.take(len(keys))
        regions = replica.regions.of(hashes[:allowed])
        adapted = 0
        with replica.regions.locked(run_regions(filter, regions), wait=False) as locked:
            latest = replica.regions.counts
            unchanged = [i for i, r in enumerate(regions) if counts[r] == latest[r]]
            if locked and unchanged and freshness.trusted and not freshness.behind:
                # A lease that expired meanwhile costs the adaptation, not the query.
                with replica.changing, suppress(LeaseError):
                    adapted = self._adapt_filter(keys, hashes, unchanged)
        self._counters.count(adaptations=adapted, adaptations_skipped=len(keys) - adapted)

    def _adapt_filter(self, keys: list[Any], hashes: HashRows, indices: list[int]) -> int:
        filter, remote = self._replica.filter, self._replica.remote
        if hasattr(filter, "_adapt_hashes"):
            return int(np.sum(filter._adapt_hashes(hashes[indices], remote)))
        wrong = [keys[i] for i in indices]
        return int(np.sum(apply_by_type(lambda some: filter.adapt_many(some, remote), wrong)))


class Limit:
    """A token bucket: at most ``per_second`` on average, in bursts of up to one second's worth."""

    def __init__(self, per_second: float | None) -> None:
        """Start with a full bucket; `None` means no limit."""
        self._rate = per_second
        self._lock = threading.Lock()
        self._left = max(per_second or 0.0, 1.0 if per_second else 0.0)
        self._last = now()

    def take(self, wanted: int) -> int:
        """Return how many of ``wanted`` are allowed now, and take them from the bucket."""
        if self._rate is None:
            return wanted
        with self._lock:
            at = now()
            most = max(self._rate, 1.0) if self._rate else 0.0
            self._left = min(most, self._left + self._rate * (at - self._last))
            self._last = at
            taken = min(wanted, int(self._left))
            self._left -= taken
            return taken
