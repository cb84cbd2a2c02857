"""What a guard counts, and when the rate it sees is not the rate it expects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

from tamis.planning.rates import interval


@dataclass(frozen=True)
class GuardStats:
    """What a guard did so far.

    >>> s = GuardStats(queries=100, reads_saved=90, false_positives=2, expected_fpr=0.01)
    >>> s.negatives, round(s.observed_fpr, 3)
    (92, 0.022)
    """

    queries: int = 0
    """Keys asked for."""
    reads_saved: int = 0
    """Queries that the filter answered, with "no"."""
    true_positives: int = 0
    """Queries that the filter let through to a key that was there."""
    false_positives: int = 0
    """Queries that the filter let through in vain: reads wasted."""
    passed: int = 0
    """Queries that went to the store because the filter could not be trusted."""
    adaptations: int = 0
    """False positives that the filter was changed for."""
    adaptations_skipped: int = 0
    """Those it was not changed for: above the limit per second, overtaken by a write, or unable."""
    rebuilds: int = 0
    """How often the filter was filled anew from the store."""
    trusted: bool = True
    """Whether the filter answers; otherwise every query goes to the store."""
    expected_fpr: float = 0.0
    """The share of queries for absent keys that the filter is expected to let through."""
    spread: float = 0.0
    """The variance of the number of false positives; see `interval`."""

    @property
    def negatives(self) -> int:
        """Queries for absent keys that the filter saw."""
        return self.reads_saved + self.false_positives

    @property
    def observed_fpr(self) -> float:
        """The share of those that it let through."""
        return self.false_positives / self.negatives if self.negatives else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The rates that could have given what was observed, once in 15,000 times outside.

        A filter errs per key, not per query: a key that was asked for f times counts f² in the
        variance, so the interval is wide where few keys make most of the queries.
        """
        return interval(self.false_positives, self.negatives, self.spread)


class Counters:
    """Counts under a lock, with how often each false positive came back."""

    _MOST = 1 << 16

    def __init__(self) -> None:
        self._lock = threading.Lock()
        numbers = (field.name for field in fields(GuardStats) if field.type in (int, "int"))
        self._counts = dict.fromkeys(numbers, 0)
        # The counts of the false positives, of a sample by hash once there are many.
        self._repeats: dict[int, int] = {}
        self._sampled = 0

    def count(self, **amounts: int) -> None:
        """Add to the counts."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    def count_repeats(self, words: list[int]) -> None:
        """Count false positives by a word of their hash."""
        with self._lock:
            mask = (1 << self._sampled) - 1
            for word in words:
                if word & mask == 0:
                    self._repeats[word] = self._repeats.get(word, 0) + 1
            if len(self._repeats) > self._MOST:
                self._sampled += 1
                mask = (1 << self._sampled) - 1
                self._repeats = {w: n for w, n in self._repeats.items() if w & mask == 0}

    def read(self, *, trusted: bool, expected_fpr: float) -> GuardStats:
        """Return the counts as they are now."""
        with self._lock:
            # The expectation of Σ f² over the false positives is Σ f²·p: the variance, if p ≪ 1.
            spread = float(sum(n * n for n in self._repeats.values()) << self._sampled)
            return GuardStats(
                **self._counts, trusted=trusted, expected_fpr=expected_fpr, spread=spread
            )


class Window(NamedTuple):
    """Queries in a row: how many had come in its end, and what its absent keys met."""

    queries: int
    negatives: int
    false_positives: int


class History:
    """The rate over time, in stretches of equal length; when they are many, two become one."""

    _MOST = 512
    _LENGTH = 256

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._length = self._LENGTH
        self._rows = [Window(0, 0, 0)]

    def record(self, queries: int, negatives: int, false_positives: int) -> None:
        """Count an answer, or a batch of them, which belongs to one stretch."""
        with self._lock:
            total, asked, wrong = self._rows[-1]
            before = self._rows[-2].queries if len(self._rows) > 1 else 0
            now = Window(total + queries, asked + negatives, wrong + false_positives)
            self._rows[-1] = now
            if now.queries - before < self._length:
                return
            if len(self._rows) == self._MOST:
                self._length *= 2
                pairs = zip(self._rows[::2], self._rows[1::2], strict=True)
                self._rows = [
                    Window(two.queries, one.negatives + two.negatives,
                            one.false_positives + two.false_positives)
                    for one, two in pairs
                ]  # fmt: skip
            self._rows.append(Window(now.queries, 0, 0))

    def read(self) -> list[Window]:
        """Return the stretches so far."""
        with self._lock:
            return [row for row in self._rows if row.negatives]


class RateMonitor:
    """Holds the rate of the latest queries against the expected one.

    A window ends when the filter is expected to have erred 32 times, or has 128 times, and not
    before a thousand queries for absent keys: soon enough to notice, late enough to tell.
    """

    _EACH = 1000
    """The expected rate, which is counted from all bits of a filter, is asked for so seldom."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._window, self._look = Counters(), self._EACH
        self.above = False
        """Whether the latest window had more false positives than expected."""

    def record(
        self, saved: int, words: list[int], expected: Callable[[], float]
    ) -> GuardStats | None:
        """Count reads saved and false positives; return the window's when the verdict changes."""
        self._window.count(reads_saved=saved, false_positives=len(words))
        self._window.count_repeats(words)
        counts = self._window._counts
        seen = counts["reads_saved"] + counts["false_positives"]
        if seen < self._look:
            return None
        self._look = seen + self._EACH
        expected_fpr = expected()
        if seen * expected_fpr < 32 and counts["false_positives"] < 128:
            return None
        with self._lock:
            window = self._window.read(trusted=True, expected_fpr=expected_fpr)
            self._window, self._look = Counters(), self._EACH
            above = window.interval[0] > expected_fpr
            if above == self.above:
                return None
            self.above = above
            return window
