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
    "passed": ("Queries sent to the store without the filter.", lambda s: s.passed),
    "change_checks": ("How often the store was checked for changes.", lambda s: s.change_checks),
    "adaptations": ("False positives that the filter adapted to.", lambda s: s.adaptations),
    "adaptations_skipped": (
        "False positives that it did not adapt to.",
        lambda s: s.adaptations_skipped,
    ),
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
}  # fmt: skip
"""Gauges by name: their help, and their value in the statistics of a guard."""


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
        return [metric for metric, _ in self._metrics()]

    def collect(self) -> Iterator[Any]:
        """Iterate over the metrics, with the value of each guard."""
        with self._lock:
            self._guards = {n: guard for n, guard in self._guards.items() if not guard.closed}
            stats = {name: guard.stats for name, guard in self._guards.items()}
        for metric, value in self._metrics():
            for name, counts in stats.items():
                metric.add_metric([name], value(counts))
            yield metric

    def _metrics(self) -> Iterator[tuple[Any, Callable[[GuardStats], float]]]:
        counter, gauge = self._core.CounterMetricFamily, self._core.GaugeMetricFamily
        for family, metrics in ((counter, COUNTERS), (gauge, GAUGES)):
            for name, (text, value) in metrics.items():
                yield family(f"tamis_guard_{name}", text, labels=["guard"]), value
