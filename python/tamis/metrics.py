"""Prometheus metrics of guards (``pip install tamis[prometheus]``).

>>> import prometheus_client, tamis
>>> users = tamis.Guard(tamis.stores.Memory(), tamis.Bloom(capacity=1000, fpr=0.01), name="users")
>>> registry = prometheus_client.CollectorRegistry()     # or prometheus_client.REGISTRY
>>> registry.register(tamis.metrics.Collector(users))
>>> users.get("ada")
>>> registry.get_sample_value("tamis_guard_reads_saved_total", {"guard": "users"})
1
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tamis.guard.statistics import FAILURES, REASONS

if TYPE_CHECKING:
    from tamis.guard import AsyncGuard, Guard
    from tamis.guard.statistics import GuardStats

COUNTERS: dict[str, tuple[str, Callable[[GuardStats], float]]] = {
    "queries": ("Keys looked up.", lambda s: s.queries),
    "reads_saved": ('Queries answered "no" by the filter.', lambda s: s.reads_saved),
    "reads_wasted": (
        "Queries that the filter accepted but the store had no value for.",
        lambda s: s.wasted_reads,
    ),
    "reads_found": (
        "Queries that the filter accepted and the store had a value for.",
        lambda s: s.true_positives,
    ),
    "change_checks": ("How often the store was checked for changes.", lambda s: s.change_checks),
    "adaptations": ("False positives that the filter adapted to.", lambda s: s.adaptations),
    "adaptations_skipped": (
        "False positives that it did not adapt to.",
        lambda s: s.adaptations_skipped,
    ),
    "adaptations_deferred": (
        "False positives that have not cost as much as adapting to them would.",
        lambda s: s.adaptations_deferred,
    ),
    "audits": (
        "Stored keys that were drawn to check that the filter accepts them.",
        lambda s: s.audits,
    ),
    "audit_failures": ("Drawn keys that the filter denied.", lambda s: s.audit_failures),
    "rebuilds": ("How often the filter was built.", lambda s: s.rebuilds),
    "rebuild_seconds": ("Time spent on building the filter.", lambda s: s.rebuild_seconds),
}
"""Counters by name: their help, and their value in the statistics of a guard."""

GAUGES: dict[str, tuple[str, Callable[[GuardStats], float]]] = {
    "observed_fpr": ("The false-positive rate since the start.", lambda s: s.observed_fpr),
    "expected_fpr": ("The rate that the filter predicts.", lambda s: s.expected_fpr),
    "trusted": ("1 if the filter is in use, 0 if all queries go to the store.",
                lambda s: float(s.trusted)),
    "memory_bytes": ("Size of the filter.", lambda s: s.memory),
    "lease_held": ("1 if this guard holds the lease.", lambda s: float(s.holds_lease)),
    "staleness_seconds": ("Time since the filter surely had all keys.", lambda s: s.staleness),
    "behind": ("1 if it knows of changes that it has not applied yet.", lambda s: float(s.behind)),
    "unsettled_keys": ("Keys of writes with an unknown outcome.", lambda s: s.unsettled),
}  # fmt: skip
"""Gauges by name: their help, and their value in the statistics of a guard."""

LABELLED: dict[str, tuple[str, str, Callable[[GuardStats], dict[str, int]]]] = {
    "passed": (
        "Queries sent to the store without the filter.",
        "reason",
        lambda s: dict.fromkeys(REASONS, 0) | s.passed_because,
    ),
    "errors": (
        "Errors of the store, by what failed.",
        "kind",
        lambda s: dict.fromkeys(FAILURES, 0) | s.errors,
    ),
}
"""Counters with a second label by name: their help, the label, and their values by its value."""


class Collector:
    """The statistics of guards, each under its name, at the time of a scrape.

    Metrics are named ``tamis_guard_queries_total`` and so on, with the label ``guard``. A guard
    that was closed is left out.
    """

    def __init__(self, *guards: Guard | AsyncGuard) -> None:
        try:
            from prometheus_client import core
        except ImportError:
            raise ImportError(
                "tamis.metrics needs prometheus_client: pip install tamis[prometheus]"
            ) from None
        self._core: Any = core
        self._lock = threading.Lock()
        self._guards: dict[str, Guard | AsyncGuard] = {}
        for guard in guards:
            self.add(guard)

    def add(self, guard: Guard | AsyncGuard) -> None:
        """Collect another guard; ValueError if an open guard has the same name."""
        from tamis.guard import AsyncGuard, Guard

        if not isinstance(guard, Guard | AsyncGuard):
            raise TypeError(
                f"guards must be tamis.Guard or tamis.AsyncGuard objects, not {guard!r}"
            )
        with self._lock:
            other = self._guards.get(guard.name)
            if other is not None and other is not guard and not other.closed:
                raise ValueError(
                    f"guards must have different names, not {guard.name!r} twice: pass "
                    "Guard(…, name=)"
                )
            self._guards[guard.name] = guard

    def describe(self) -> list[Any]:
        """Return the metrics without values, so that registering reads no guard."""
        return [metric for metric, *_ in self._metrics()]

    def collect(self) -> Iterator[Any]:
        """Iterate over the metrics, with the value of each guard."""
        with self._lock:
            self._guards = {n: guard for n, guard in self._guards.items() if not guard.closed}
            stats = {name: guard.stats for name, guard in self._guards.items()}
        for metric, value in self._metrics():
            for name, counts in stats.items():
                read = value(counts)
                for label, one in read.items() if isinstance(read, dict) else [(None, read)]:
                    metric.add_metric([name] if label is None else [name, label], one)
            yield metric

    def _metrics(self) -> Iterator[tuple[Any, Callable[[GuardStats], Any]]]:
        counter, gauge = self._core.CounterMetricFamily, self._core.GaugeMetricFamily
        for family, metrics in ((counter, COUNTERS), (gauge, GAUGES)):
            for name, (text, value) in metrics.items():
                yield family(f"tamis_guard_{name}", text, labels=["guard"]), value
        for name, (text, label, values) in LABELLED.items():
            yield counter(f"tamis_guard_{name}", text, labels=["guard", label]), values
