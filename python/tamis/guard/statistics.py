"""The counters of a guard, its costs and history, a monitor of its rate, and its log."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from tamis._clock import now
from tamis._native import Gate
from tamis.planning.rates import interval

_logger = logging.getLogger("tamis.guard")

REASONS = "rebuilding", "behind", "busy", "failed"
"""Why queries are sent to the store: the filter is not trusted; the store has more changes than a
query waits for; another call is changing the filter; or the guard's tables do not work, with
``on_failure="pass"``."""

FAILURES = "read", "check", "adapt", "write", "rebuild", "follow", "renew", "audit", "share"
"""What an error of the store made fail: steps of calls, then work in the background."""

_LOG_SECONDS = 10.0
"""Between two lines of one kind."""


class Log:
    """Writes lines to the logger ``tamis.guard``.

    Lines of one kind have the same format. Lines that come too soon are left out and counted; the
    next line of their kind ends with the count.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[float, int]] = {}
        """When a line of a kind may be written again, and how many were left out."""

    def info(self, message: str, *arguments: Any) -> None:
        """Log a routine event."""
        self._write(logging.INFO, message, arguments)

    def warning(self, message: str, *arguments: Any) -> None:
        """Log a condition that may need attention."""
        self._write(logging.WARNING, message, arguments)

    def error(self, message: str, *arguments: Any, exc_info: bool = False) -> None:
        """Log a failure, with the traceback if ``exc_info`` is set."""
        self._write(logging.ERROR, message, arguments, exc_info)

    def _write(
        self, level: int, message: str, arguments: tuple[Any, ...], exc_info: bool = False
    ) -> None:
        if not _logger.isEnabledFor(level):
            return
        at = now()
        with self._lock:
            after, left_out = self._kinds.get(message, (at, 0))
            if at < after:
                self._kinds[message] = after, left_out + 1
                return
            self._kinds[message] = at + _LOG_SECONDS, 0
        more = f" ({left_out} such lines were left out before)" if left_out else ""
        text = f"%s: {message}{more}"
        _logger.log(level, text, self._name, *arguments, exc_info=exc_info, stacklevel=3)


@dataclass(frozen=True)
class GuardStats:
    """The counts of a guard so far.

    >>> s = GuardStats(queries=100, reads_saved=90, false_positives=2, expected_fpr=0.01)
    >>> s.negatives, round(s.observed_fpr, 3)
    (92, 0.022)
    """

    queries: int = 0
    """Keys looked up."""
    reads_saved: int = 0
    """Queries that the filter answered with "no", without a read of the store."""
    true_positives: int = 0
    """Queries that the filter accepted and the store had a value for."""
    false_positives: int = 0
    """Queries that the filter accepted but the store had no value for."""
    wasted_reads: int = 0
    """Reads for them; a key that a batch has several times is read once."""
    accepted: int = 0
    """Queries of `maybe` that the filter accepted; the guard does not know their outcome."""
    passed: int = 0
    """Queries sent to the store because the filter could not be trusted at the time."""
    passed_because: dict[str, int] = field(default_factory=dict)
    """These by reason: rebuilding (the filter is not trusted), behind (more changes than a query
    waits for), busy (another call is changing the filter) or failed (the guard's tables do not
    work, with ``on_failure="pass"``)."""
    errors: dict[str, int] = field(default_factory=dict)
    """Errors of the store by what failed: read, check (for changes), adapt, write, or work in the
    background: rebuild, follow, renew (the lease), audit, share (the snapshot)."""
    adaptations: int = 0
    """False positives that the filter adapted to."""
    adaptations_skipped: int = 0
    """False positives it did not adapt to: over the limit, overtaken by a write, or unfixable."""
    adaptations_deferred: int = 0
    """False positives whose wasted reads have not cost as much as adapting to them would."""
    change_checks: int = 0
    """How often the store was checked for changes of its keys, by queries or in the background."""
    audits: int = 0
    """Keys that were drawn from the store to check that the filter accepts them."""
    audit_failures: int = 0
    """Keys of these that it denied, after which it was rebuilt."""
    rebuilds: int = 0
    """How often the filter was built from, or checked against, the store's keys."""
    trusted: bool = True
    """Whether the filter is in use; otherwise every query goes to the store."""
    holds_lease: bool = False
    """Whether this guard holds the lease, so that it may write."""
    staleness: float = 0.0
    """Seconds since the filter surely had all keys of the store: 0 under a lease that keeps others
    from writing, infinite before the first change check."""
    behind: bool = False
    """Whether it knows of changes that it has not applied yet."""
    unsettled: int = 0
    """Keys of writes with an unknown outcome."""
    expected_fpr: float = 0.0
    """The false-positive rate that the filter predicts."""
    memory: int = 0
    """Bytes of the filter."""
    rebuild_seconds: float = 0.0
    """Total time of all rebuilds."""
    variance: float = 0.0
    """Estimated variance of `false_positives`; see `interval`."""

    @property
    def negatives(self) -> int:
        """Queries for absent keys that the filter answered or accepted."""
        return self.reads_saved + self.false_positives

    @property
    def observed_fpr(self) -> float:
        """The false-positive rate so far: `false_positives` / `negatives`."""
        return self.false_positives / self.negatives if self.negatives else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """A confidence interval of the rate (it misses the true rate once in 15,000 times).

        A filter errs per key, not per query: a key that was looked up f times adds f² to the
        variance, so the interval is wide where a few keys make up most of the queries.
        """
        return interval(self.false_positives, self.negatives, self.variance)


class Counters:
    """Thread-safe counters, including how often each false positive was repeated."""

    _MAX_REPEATS = 1 << 16
    """Distinct false positives to count; above that, half of them, chosen by hash, are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        numbers = (field.name for field in fields(GuardStats) if field.type in (int, "int"))
        self._counts = dict.fromkeys(numbers, 0)
        self._passed, self._errors = Counter[str](), Counter[str]()
        # Repeats by a word of the hash, for words that end in `_sampled` zero bits.
        self._repeats: dict[int, int] = {}
        self._sampled = 0

    def count(self, **amounts: int) -> None:
        """Add to counters, by field name of `GuardStats`."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    def count_passed(self, queries: int, reason: str) -> None:
        """Count queries that were sent to the store, and why."""
        self.count(queries=queries, passed=queries)
        with self._lock:
            self._passed[reason] += queries

    def count_error(self, kind: str) -> None:
        """Count an error of the store, by what failed."""
        with self._lock:
            self._errors[kind] += 1

    def count_repeats(self, words: list[int]) -> None:
        """Count how often false positives repeat, each given by a word of its hash."""
        with self._lock:
            mask = (1 << self._sampled) - 1
            for word in words:
                if word & mask == 0:
                    self._repeats[word] = self._repeats.get(word, 0) + 1
            if len(self._repeats) > self._MAX_REPEATS:
                self._sampled += 1
                mask = (1 << self._sampled) - 1
                self._repeats = {w: n for w, n in self._repeats.items() if w & mask == 0}

    def read(self, *, trusted: bool, expected_fpr: float, **more: Any) -> GuardStats:
        """Return the current counts; ``more`` are fields and counts kept elsewhere."""
        with self._lock:
            counts = {name: n + more.pop(name, 0) for name, n in self._counts.items()}
            more["errors"] = dict(self._errors + Counter(more.get("errors")))
            # The expectation of Σ f² over the false positives is Σ f²·p: the variance, if p ≪ 1.
            variance = float(sum(n * n for n in self._repeats.values()) << self._sampled)
            return GuardStats(
                **counts,
                **more,
                passed_because=dict(self._passed),
                trusted=trusted,
                expected_fpr=expected_fpr,
                variance=variance,
            )


class Window(NamedTuple):
    """Consecutive queries: the number of queries up to its end, and its own negatives."""

    queries: int
    negatives: int
    false_positives: int


class History:
    """The rate over time, in windows of equal length; when there are too many, pairs are merged."""

    _MAX_WINDOWS = 512
    _LENGTH = 256

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._length = self._LENGTH
        self._windows = [Window(0, 0, 0)]

    def record_saved(self, queries: int, negatives: int) -> None:
        """Count queries without a false positive, as if they had come one after the other."""
        while queries:
            with self._lock:
                some = min(queries, self._length)
            absent = round(negatives * some / queries)
            self.record(some, absent, 0)
            queries, negatives = queries - some, negatives - absent

    def record(self, queries: int, negatives: int, false_positives: int) -> None:
        """Count a query, or a batch, which falls into one window as a whole."""
        with self._lock:
            total, absent, wrong = self._windows[-1]
            before = self._windows[-2].queries if len(self._windows) > 1 else 0
            now = Window(total + queries, absent + negatives, wrong + false_positives)
            self._windows[-1] = now
            if now.queries - before < self._length:
                return
            if len(self._windows) == self._MAX_WINDOWS:
                self._length *= 2
                pairs = zip(self._windows[::2], self._windows[1::2], strict=True)
                self._windows = [
                    Window(
                        two.queries,
                        one.negatives + two.negatives,
                        one.false_positives + two.false_positives,
                    )
                    for one, two in pairs
                ]
            self._windows.append(Window(now.queries, 0, 0))

    def read(self) -> list[Window]:
        """Return the windows so far that have queries for absent keys."""
        with self._lock:
            return [window for window in self._windows if window.negatives]


class ExpectedRate:
    """The rate that a filter predicts, for comparisons that happen all the time.

    Some filters read all of their memory for it. So it is computed again only when a hundred times
    as long as the computation took has passed.
    """

    def __init__(self) -> None:
        self._value, self._filter, self._next = 0.0, None, 0.0

    def read(self, filter: Any) -> float:
        """Return the rate of a filter, perhaps as it was a moment ago."""
        start = time.perf_counter()
        if filter is not self._filter or start >= self._next:
            self._value, self._filter = filter.expected_fpr, filter
            end = time.perf_counter()
            self._next = end + 100 * (end - start)
        return self._value


class RateMonitor:
    """Compares the rate of recent queries with the expected rate.

    A window ends after 32 expected or 128 observed false positives, but not before a thousand
    queries for absent keys: enough to tell a raised rate from chance.
    """

    _INTERVAL = 1000
    """Queries for absent keys between comparisons."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._window, self._next_check = Counters(), self._INTERVAL
        self.above = False
        """Whether the latest window had more false positives than expected."""

    def record(
        self, saved: int, words: list[int], expected: Callable[[], float]
    ) -> GuardStats | None:
        """Count queries; return the stats of the window if it changed `above`."""
        self._window.count(reads_saved=saved, false_positives=len(words))
        self._window.count_repeats(words)
        counts = self._window._counts
        seen = counts["reads_saved"] + counts["false_positives"]
        if seen < self._next_check:
            return None
        self._next_check = seen + self._INTERVAL
        expected_fpr = expected()
        if seen * expected_fpr < 32 and counts["false_positives"] < 128:
            return None
        with self._lock:
            window = self._window.read(trusted=True, expected_fpr=expected_fpr)
            self._window, self._next_check = Counters(), self._INTERVAL
            above = window.interval[0] > expected_fpr
            if above == self.above:
                return None
            self.above = above
            return window


class Rates:
    """Keeps the history of a guard's false-positive rate, and reports when it is too high."""

    def __init__(
        self,
        gate: Gate,
        counters: Counters,
        on_rate: Callable[[GuardStats], object] | None,
        log: Log,
    ) -> None:
        self._gate, self._counters, self._on_rate, self._log = gate, counters, on_rate, log
        self._monitor, self._history = RateMonitor(), History()
        self._expected = ExpectedRate()
        self._recording, self._recorded = threading.Lock(), (0, 0)

    def history(self) -> list[Window]:
        """Return the rate over time, in windows of consecutive queries."""
        self.record([])
        return self._history.read()

    def record(self, wrong: list[int], reads: int = 0) -> None:
        """Count false positives, given by a word of their hashes, and the queries counted natively.

        Report when the rate of recent queries rises above the expected one, and when it is back.
        """
        if wrong:
            self._counters.count(queries=len(wrong), false_positives=len(wrong), wasted_reads=reads)
            self._counters.count_repeats(wrong)
        with self._recording:
            denied, found = self._gate.denied, self._gate.found
            saved, read = denied - self._recorded[0], found - self._recorded[1]
            self._recorded = denied, found
        if wrong:
            self._history.record(saved + read + len(wrong), saved + len(wrong), len(wrong))
        else:
            self._history.record_saved(saved + read, saved)
        window = self._monitor.record(saved, wrong, lambda: self._expected.read(self._gate.filter))
        if window is None:
            return
        if self._on_rate is not None:
            self._on_rate(window)
            return
        state = "above the expected one" if self._monitor.above else "back to normal"
        self._log.warning(
            f"false-positive rate is {state}: %.3g observed (%.3g to %.3g), %.3g expected",
            window.observed_fpr,
            *window.interval,
            window.expected_fpr,
        )


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
            full = max(self._rate, 1.0) if self._rate else 0.0
            self._left = min(full, self._left + self._rate * (at - self._last))
            self._last = at
            taken = min(wanted, int(self._left))
            self._left -= taken
            return taken


class Average:
    """A running average of durations in seconds, in which a single stall counts little."""

    _WINDOW = 64
    """Durations to average over, about."""
    _MAX_STEP = 4.0
    """A duration counts as at most this many times the average so far."""

    def __init__(self) -> None:
        self.value, self.count = 0.0, 0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count something that was done so many times in this time."""
        each = seconds / times
        if self.count:
            each = min(each, self._MAX_STEP * self.value)
        self.count += times
        self.value += (each - self.value) * min(times, self._WINDOW) / min(self.count, self._WINDOW)


class Rental:
    """Whether to adapt to a false positive: if its wasted reads have cost as much as adapting.

    Whether a key will be queried again is unknown, so this is the ski-rental problem: one who rents
    until the rent has reached the price, and then buys, pays at most twice what the future would
    have told to pay. The reads are added up in a table by hash that does not tell keys apart. Keys
    that share an entry are adapted to sooner, but all adaptations never cost more than all wasted
    reads, and no number of keys makes it forget one that returns.
    """

    _ENTRIES = 1 << 14

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spent = array("d", bytes(8 * self._ENTRIES))

    def due(self, words: list[int], read: float, price: float) -> list[int]:
        """Add the cost of one read to each false positive; return the indices of those to adapt to.

        ``words`` are words of their hashes, ``read`` and ``price`` the costs of a wasted read and
        of an adaptation.
        """
        due = []
        with self._lock:
            for i, word in enumerate(words):
                entry = word % self._ENTRIES
                spent = self._spent[entry] + read
                if spent >= price:
                    spent = 0.0  # also if adapting fails: it is not tried again at each read
                    due.append(i)
                self._spent[entry] = spent
        return due


class Payoff:
    """Whether the change checks of a strict guard cost less than the reads that they save."""

    _MIN_CHECKS, _MIN_READS = 1000, 16

    def __init__(self, reads: Average) -> None:
        """``reads`` is the cost of a read of the store."""
        self._reads, self._checks, self._reported = reads, Average(), False

    def record(self, seconds: float, saved: int) -> tuple[float, float] | None:
        """Count a change check; ``saved`` are the reads that all so far have saved.

        Return both costs per change check, once, if the checks cost more.
        """
        self._checks.add(seconds)
        known = self._checks.count >= self._MIN_CHECKS and self._reads.count >= self._MIN_READS
        if self._reported or not known:
            return None
        saves = self._reads.value * saved / self._checks.count
        if self._checks.value <= saves:
            return None
        self._reported = True
        return self._checks.value, saves
