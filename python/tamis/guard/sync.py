"""`Guard`: a filter in front of a store. Its queries are steps that `AsyncGuard` takes as well."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np

from tamis._checks import MAX_SECONDS, check_number, one_of, parse_duration
from tamis._clock import now
from tamis._format import facts_html, format_rate, format_size
from tamis._native import Lookup, key_list, plain_key, plain_keys
from tamis._types import FilePath
from tamis.errors import StoreError
from tamis.filters import Filter
from tamis.filters.adaptive_stacked import AdaptiveStacked
from tamis.guard.driver import Driver, OnFailure
from tamis.guard.opening import check_is_filter, check_is_store, choose_filter
from tamis.guard.replica import apply_by_type
from tamis.guard.statistics import (
    Average,
    Counters,
    GuardStats,
    Limit,
    Log,
    Payoff,
    Rates,
    Rental,
    Window,
)
from tamis.stores.base import GivenKey, GivenKeys, HashRows, PlainKey, Store, Value
from tamis.stores.memory import Memory

if TYPE_CHECKING:
    from tamis.guard.page import Page
    from tamis.workload import Workload

_USUAL_VALUES = {bytes, str}
"""Types of values that every store takes."""


# The steps of a query that may have to wait.


class Refresh(NamedTuple):
    """Return why the filter's "no" does not count, after a check of the store, or `None`."""


class Read(NamedTuple):
    """Return the value of each key, as the store has it."""

    keys: list[PlainKey]


class Adapt(NamedTuple):
    """Feed false positives back to the filter, given the regions' write counts before the read."""

    keys: list[Any]
    hashes: HashRows
    counts: list[int]


Steps: TypeAlias = Generator[Refresh | Read | Adapt, Any, Any]


class Guard:
    """A filter in front of a store: queries that the filter answers "no" never reach the store.

    ``filter`` is an empty filter that supports insertion, which the guard fills from the store, or
    a filter of all the store's keys, which the guard checks. If it is adaptive, the guard feeds
    false positives back to it. Without one, the guard chooses: an adaptive filter for the keys that
    the store has, with ``bits_per_key`` (default: 10), or the best filter by `tamis.advise` for a
    ``workload``; ``chosen`` describes it.

    ``max_staleness`` is how long ago the guard may have last checked for writes by others when it
    answers "no": seconds, or text such as ``"100ms"``. By default (0) a put that has returned, in
    any process, is never denied. Otherwise it may be denied for that long, and a guard without the
    lease, or on a table that others write to, answers from memory instead of asking the store.
    ``on_failure`` is the behaviour while the store is unreachable: by default (``"raise"``) queries
    raise `tamis.StoreError` as soon as the guard notices; with ``"filter"`` it continues to answer
    "no" from the filter while it holds the lease or is within ``max_staleness``. With ``"pass"``,
    queries go to the store if the guard's tables there are missing, broken or forbidden.

    ``snapshot`` is a file that keeps the filter between runs; without it, opening reads all keys.
    ``key`` is the filter's secret key, if it has one; the store keeps it for the next run.
    ``lease`` is how many seconds other guards must wait to write after this one crashed.
    ``adaptations_per_second`` limits the work that hostile queries can cause.
    ``on_rate`` is called with a `GuardStats` of recent queries when their false-positive rate rises
    above the expected one, and again when it is back to normal; by default a warning is logged.
    With ``share``, processes on one host share the memory of the snapshot: the guard that holds the
    lease writes it again after changes, and the others map it. With ``read_only``, the guard never
    takes the lease; with both, it needs no ``filter``, and uses the one in the snapshot.
    ``name`` identifies the guard in the log, in `tamis.metrics` and on its page.

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
        filter: Filter | None = None,
        *,
        bits_per_key: float | None = None,
        workload: Workload | None = None,
        snapshot: FilePath | None = None,
        key: bytes | None = None,
        lease: float = 10.0,
        max_staleness: float | str = 0.0,
        on_failure: OnFailure = "raise",
        adaptations_per_second: float | None = None,
        on_rate: Callable[[GuardStats], object] | None = None,
        name: str = "guard",
        share: bool = False,
        read_only: bool = False,
    ) -> None:
        """Load the filter from the snapshot, or from the store's keys if the snapshot is unusable.

        If another guard holds the lease, this one answers queries but cannot write.
        """
        check_is_store(store)
        one_of("on_failure", on_failure, ("raise", "filter", "pass"))
        staleness = min(parse_duration("max_staleness", max_staleness), MAX_SECONDS)
        seconds = check_number(
            "lease",
            lease,
            f"a number of seconds above 0 and at most {MAX_SECONDS}",
            above=0,
            maximum=MAX_SECONDS,
        )
        if adaptations_per_second is not None:
            what = "a number of 0 or more, or None for no limit"
            adaptations_per_second = check_number(
                "adaptations_per_second", adaptations_per_second, what, minimum=0
            )
        if not isinstance(name, str) or not name:
            raise ValueError(f"name must be a non-empty string, not {name!r}")
        if not isinstance(snapshot, str | bytes | os.PathLike | None):
            raise TypeError(f"snapshot must be the path of a file, not {snapshot!r}")
        if share and snapshot is None:
            raise ValueError("pass snapshot=, the file to share, with share=True")
        self.store, self.name, self.log = store, name, Log(name)
        self.chosen: str | None = None
        """Which filter was chosen, and why; `None` if one was passed in."""
        if filter is None and share and read_only:
            pass  # the snapshot has one
        elif filter is None:
            filter, self.chosen = choose_filter(store, bits_per_key, workload)
            self.log.info("chose %s", self.chosen)
        elif bits_per_key is not None or workload is not None:
            raise ValueError("pass bits_per_key and workload only without a filter")
        if filter is not None:
            check_is_filter(filter)
        self.on_query: Callable[[Sequence[Any], Sequence[Value | None]], object] | None = None
        """Called with the keys and values of each query that was answered, if it is set."""
        self._counters = Counters()
        self.driver = Driver(
            store,
            filter,
            self._counters,
            log=self.log,
            key=key,
            lease=seconds,
            snapshot=snapshot,
            max_staleness=staleness,
            on_failure=on_failure,
            share=bool(share),
            read_only=bool(read_only),
        )
        self._replica = self.driver.replica
        self._gate = self._replica.gate
        self.lookup: Callable[[Any], Lookup | None] = self._gate.lookup
        self._limit = Limit(adaptations_per_second)
        # Reads of a store in memory cost nothing to speak of, so it adapts at once.
        self._rental = None if isinstance(store, Memory) else Rental()
        self._reads, self._adapting = Average(), Average()
        strict = store.shared and not staleness
        self._payoff = Payoff(self._reads) if strict else None
        self._rates = Rates(self._gate, self._counters, on_rate, self.log)
        self._page: Page | None = None
        # Keys that are tuples or UUIDs have another form for the filter and the store.
        self.translates = store.translates_keys
        self.to_plain: Callable[[Any], PlainKey] = (
            store.to_plain if self.translates else plain_key  # type: ignore[attr-defined]
        )

    @property
    def filter(self) -> Filter:
        """The current filter; a rebuild replaces it with a new one."""
        filter: Filter = self._replica.filter
        return filter

    # Queries.

    def get(self, key: GivenKey) -> Value | None:
        """Return the value of a key, or `None` if it is absent."""
        lookup = self.lookup(self.to_plain(key) if self.translates else key)
        if lookup is None and self.on_query is None:
            return None
        return self._take(self.get_steps(key, lookup))

    def get_many(self, keys: GivenKeys) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent.

        Each distinct key that the filter accepts is read once.
        """
        values: list[Value | None] = self._take(self.get_many_steps(keys))
        return values

    def maybe(self, key: GivenKey) -> bool:
        """Return whether the store may have a key, without reading its value.

        `False` is as reliable as a `get` that returns `None`. Use it where something else reads the
        value, an ORM for example.

        >>> import tamis
        >>> g = Guard(tamis.stores.Memory(), tamis.Quotient(capacity=1000, fpr=2**-8))
        >>> g.put("ada", "1815")
        >>> g.maybe("ada"), g.maybe("alan"), g.maybe_many(["ada", "grace"])
        (True, False, [True, False])
        """
        lookup = self.lookup(self.to_plain(key) if self.translates else key)
        if lookup is None and self.on_query is None:
            return False
        maybe: bool = self._take(self.maybe_steps(key, lookup))
        return maybe

    def maybe_many(self, keys: GivenKeys) -> list[bool]:
        """Return for each key whether the store may have it; see `maybe`."""
        maybe: list[bool] = self._take(self.maybe_many_steps(keys))
        return maybe

    def _take(self, steps: Steps) -> Any:
        """Take the steps of a query, and wait for each."""
        answer: Any = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, Read):
                    answer = self.store.get_many(step.keys)
                elif isinstance(step, Adapt):
                    answer = self.adapt(step)
                else:
                    answer = self.driver.refresh()
        except StopIteration as end:
            return end.value
        except StoreError:
            self.count_error(step)
            raise

    def count_error(self, step: Refresh | Read | Adapt) -> None:
        """Count that the store failed at a step of a query."""
        self._counters.count_error({Refresh: "check", Read: "read", Adapt: "adapt"}[type(step)])

    def _read(self, keys: list[PlainKey]) -> Steps:
        """Yield the step that reads keys, and return their values."""
        start = time.perf_counter()
        values = yield Read(keys)
        self._reads.add(time.perf_counter() - start, len(keys))
        return values

    def _refresh(self) -> Steps:
        """Yield the step that brings the filter up to date; return why that did not work."""
        start = time.perf_counter()
        reason = yield Refresh()
        if reason is None and self._payoff is not None:
            costs = self._payoff.record(time.perf_counter() - start, self._gate.denied)
            if costs is not None:
                self.log.warning(
                    "the guard does not pay: a change check takes %.0f µs, and the reads that it "
                    'saves take %.0f µs; pass max_staleness="100ms", for example',
                    *(cost * 1e6 for cost in costs),
                )
        return reason

    def get_steps(self, key: Any, lookup: Any) -> Steps:
        """Yield the steps of `get` after a lookup in the gate, and return the value."""
        value = None
        if lookup is not None:
            passed = None if lookup.accepted else (yield from self._refresh())
            if passed:
                value = (yield from self._read([lookup.key]))[0]
                self._counters.count_passed(1, passed)
            elif not lookup.accepted and not self._gate.accepts(lookup):
                self._gate.count_denied(1)
            else:
                counts = self._replica.regions.counts.copy()
                value = (yield from self._read([lookup.key]))[0]
                if value is not None:
                    self._gate.count_found(1)
                else:
                    hashes = lookup.hashes
                    self._rates.record(hashes[:, 1].tolist(), reads=1)
                    if self.filter.adapts:
                        yield Adapt([lookup.key], hashes, counts)
        if self.on_query is not None:
            self.on_query([key], [value])
        return value

    def get_many_steps(self, keys: GivenKeys) -> Steps:
        """Yield the steps of `get_many`, and return the values."""
        given = key_list(keys)
        plain = [self.to_plain(key) for key in given] if self.translates else given
        values: list[Value | None] = [None] * len(given)
        filter = self._gate.current_filter()
        passed: str | None = None if filter is not None else (yield from self._refresh())
        if passed:
            accepted, counts = dict(enumerate(plain_keys(plain))), None
        else:
            filter = self._replica.filter if filter is None else filter
            accepted, counts = self._accepted(filter, plain), self._replica.regions.counts.copy()
        distinct = [*dict.fromkeys(accepted.values())]
        values_read = (yield from self._read(distinct)) if distinct else []
        found = dict(zip(distinct, values_read, strict=True))
        for i, key in accepted.items():
            values[i] = found[key]
        if counts is None:
            self._counters.count_passed(len(given), passed or "")
        else:
            self._gate.count_denied(len(given) - len(accepted))
            adapt = self._false_positives(filter, plain, accepted, found, counts)
            if adapt is not None:
                yield adapt
        if self.on_query is not None:
            self.on_query(given, values)
        return values

    def maybe_steps(self, key: Any, lookup: Any) -> Steps:
        """Yield the steps of `maybe` after a lookup in the gate, and return the answer."""
        maybe = lookup is not None
        if lookup is not None:
            passed = None if lookup.accepted else (yield from self._refresh())
            if passed:
                self._counters.count_passed(1, passed)
            elif not lookup.accepted and not self._gate.accepts(lookup):
                self._gate.count_denied(1)
                maybe = False
            else:
                self._counters.count(queries=1, accepted=1)
        if self.on_query is not None and not maybe:
            self.on_query([key], [None])
        return maybe

    def maybe_many_steps(self, keys: GivenKeys) -> Steps:
        """Yield the steps of `maybe_many`, and return the answers."""
        given = key_list(keys)
        plain = [self.to_plain(key) for key in given] if self.translates else given
        filter = self._gate.current_filter()
        passed = None if filter is not None else (yield from self._refresh())
        if passed:
            plain_keys(plain)  # raises an error for objects that are not keys
            self._counters.count_passed(len(given), passed)
            return [True] * len(given)
        answers: list[bool] = apply_by_type(
            (self._replica.filter if filter is None else filter).contains, plain
        ).tolist()
        accepted = sum(answers)
        self._gate.count_denied(len(given) - accepted)
        self._counters.count(queries=accepted, accepted=accepted)
        if self.on_query is not None:
            absent = [key for key, maybe in zip(given, answers, strict=True) if not maybe]
            self.on_query(absent, [None] * len(absent))
        return answers

    def _accepted(self, filter: Filter, plain: list[Any]) -> dict[int, PlainKey]:
        """Return the keys that the filter accepts, by their indices, as the store takes them."""
        indices = np.flatnonzero(apply_by_type(filter.contains, plain)).tolist()
        return dict(zip(indices, plain_keys([plain[i] for i in indices]), strict=True))

    def _false_positives(
        self,
        filter: Any,
        plain: list[Any],
        accepted: dict[int, PlainKey],
        found: dict[PlainKey, Value | None],
        counts: list[int],
    ) -> Adapt | None:
        """Count the accepted keys, and return the false positives that the filter can adapt to."""
        wrong = [i for i, key in accepted.items() if found[key] is None]
        self._gate.count_found(len(accepted) - len(wrong))
        hashes = self._replica.hashes([plain[i] for i in wrong])
        once = list({accepted[i]: n for n, i in enumerate(wrong)}.values())
        self._rates.record(hashes[:, 1].tolist(), reads=len(once))
        if not wrong or not filter.adapts:
            return None
        # A stack counts the queries for each key; other filters adapt to a key once.
        used = range(len(wrong)) if isinstance(filter, AdaptiveStacked) else once
        return Adapt([plain[wrong[n]] for n in used], hashes[used], counts)

    def adapt(self, wrong: Adapt) -> int:
        """Adapt the filter to false positives that are worth it, as many as the limit allows."""
        adapted, due = 0, [*range(len(wrong.keys))]
        if self.driver.may_adapt():
            # A stack counts queries, and decides by the counts when to adapt.
            if self._rental is not None and not isinstance(self.filter, AdaptiveStacked):
                words = wrong.hashes[:, 1].tolist()
                due = self._rental.due(words, self._reads.value, self._adapting.value)
            some, protocol = due[: self._limit.take(len(due))], self.driver.protocol
            start = time.perf_counter()
            if some:
                adapted = self._replica.adapt(
                    [wrong.keys[i] for i in some],
                    wrong.hashes[some],
                    wrong.counts,
                    lambda: protocol.may_use_index,
                )
            if adapted:
                self._adapting.add(time.perf_counter() - start, len(some))
        self._counters.count(
            adaptations=adapted,
            adaptations_skipped=len(due) - adapted,
            adaptations_deferred=len(wrong.keys) - len(due),
        )
        return adapted

    def __contains__(self, key: GivenKey) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[PlainKey]:
        """Iterate over the keys of the store, text as bytes."""
        _, parts = self.store.contents()
        for part in parts:
            yield from map(self.store.from_plain, part) if self.translates else part  # type: ignore[attr-defined]

    # Writes.

    def put(self, key: GivenKey, value: Value) -> None:
        """Write a key and its value."""
        self._check_value(key, value)
        keys = [self.to_plain(key)]
        self._write(self.driver.put, keys, [value], self._gate.batch(keys))

    def put_many(self, items: Any) -> None:
        """Write keys and values, given as a mapping or as pairs, in one commit."""
        given, values = read_pairs(items)
        if not {*map(type, values)} <= _USUAL_VALUES:
            for key, value in zip(given, values, strict=True):
                self._check_value(key, value)
        keys: list[PlainKey] | None = None
        if not self.translates:
            with suppress(Exception):  # which is raised again for the key itself
                keys = plain_keys(given)
        if keys is None:
            keys = [self.to_plain(key) for key in given]
        last = dict(zip(keys, values, strict=True))
        if last:
            keys = list(last)
            self._write(self.driver.put, keys, list(last.values()), self._gate.batch(keys))

    def _write(self, write: Callable[..., Any], *arguments: Any) -> Any:
        """Put or delete, and count errors of the store."""
        try:
            return write(*arguments)
        except StoreError:
            self._counters.count_error("write")
            raise

    def _check_value(self, key: Any, value: Any) -> None:
        # An existing table has values of any type, as its driver takes and gives them.
        if value is None or not (self.store.shared or isinstance(value, (bytes, str))):
            raise TypeError(
                f"the value of key {key!r} must be bytes or str, not {value!r} "
                f"(of type {type(value).__name__})"
            )

    def delete(self, key: GivenKey) -> bool:
        """Delete a key; return whether it was present."""
        keys = [self.to_plain(key)]
        existed: list[bool] = self._write(self.driver.delete, keys, self._gate.batch(keys))
        return existed[0]

    def delete_many(self, keys: GivenKeys) -> list[bool]:
        """Delete keys in one commit; return for each whether it was present."""
        given = key_list(keys)
        plain = [self.to_plain(key) for key in given] if self.translates else plain_keys(given)
        distinct = list(dict.fromkeys(plain))
        if not distinct:
            return []
        existed: list[bool] = self._write(self.driver.delete, distinct, self._gate.batch(distinct))
        if len(distinct) == len(plain):
            return existed
        # A key that is given twice is present only the first time.
        present = dict(zip(distinct, existed, strict=True))
        return [present.pop(key, False) for key in plain]

    # State.

    @property
    def stats(self) -> GuardStats:
        """Counts of queries, reads saved and false positives so far."""
        denied, found = self._gate.denied, self._gate.found
        protocol, at = self.driver.protocol, now()
        return self._counters.read(
            trusted=protocol.trusted,
            holds_lease=protocol.holds_lease(at),
            staleness=protocol.staleness(at),
            behind=protocol.behind,
            unsettled=len(protocol.unsettled),
            errors=self.driver.failures,
            expected_fpr=self.filter.expected_fpr,
            queries=denied + found,
            reads_saved=denied,
            true_positives=found,
            change_checks=self._gate.change_checks,
            memory=-(-self.filter.size_in_bits // 8),
            rebuild_seconds=self.driver.rebuild_seconds,
        )

    def rebuild(self) -> None:
        """Rebuild the filter from the store's keys, or check it if the guard was given a full one.

        Queries continue meanwhile, against the store; writes wait.
        """
        self.driver.rebuild()

    def save(self) -> None:
        """Write the snapshot now."""
        self.driver.check_usable()
        self.driver.save()

    @property
    def history(self) -> list[Window]:
        """The false-positive rate over time, in windows of consecutive queries."""
        return self._rates.history()

    def plot(self, ax: Any = None) -> Any:
        """Plot the observed and the expected false-positive rate over time; return the axes."""
        from tamis.plotting import draw_history

        return draw_history(self.history, self.filter.expected_fpr, ax)

    def serve(
        self, port: int | range = 0, *, host: str = "127.0.0.1", token: str | None = None
    ) -> Page:
        """Serve a web page with the guard's statistics until the page or the guard is closed.

        ``page.url`` is its address; port 0 selects a free port, and a range its first free port:
        each worker of a service has a guard, and a page, of its own. A ``host`` other than the
        loopback requires a ``token``, which becomes part of the URL. While the page is open, the
        guard samples queries for absent keys, which costs about a microsecond per query.
        """
        from tamis.guard.page import Page

        if self._page is not None or self.closed:
            state = "closed" if self._page is None else f"served already, at {self._page.url}"
            raise ValueError(f"cannot serve a guard that is {state}")
        self._page = page = Page(self, port, host, token)
        self.on_query = page.sample.record
        return page

    def page_closed(self) -> None:
        """Stop to sample queries for the page."""
        self.on_query = self._page = None

    @property
    def closed(self) -> bool:
        """Whether the guard was closed."""
        return self.driver.closed

    def close(self) -> None:
        """Write the snapshot if there is a path for it, release the lease and close the store."""
        if self.driver.closed or self._gate.forked:
            return
        try:
            if self._page is not None:
                self._page.close()
            self.driver.close()
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
            f"{s.wasted_reads:,} reads wasted>"
        )

    def _repr_html_(self) -> str:
        s = self.stats
        facts = {
            "filter": f"{type(self.filter).__name__}, {format_size(self.filter.size_in_bits)}",
            "store": type(self.store).__name__,
            "queries": f"{s.queries:,}",
            "reads saved": f"{s.reads_saved:,}",
            "reads wasted": f"{s.wasted_reads:,}",
            "observed false-positive rate": format_rate(s.observed_fpr) if s.negatives else "–",
            "expected false-positive rate": format_rate(s.expected_fpr),
        }
        return facts_html("tamis.Guard", facts)


def read_pairs(items: Any) -> tuple[list[GivenKey], list[Value]]:
    """Return keys and values, given as a mapping or as pairs."""
    pairs = items.items() if hasattr(items, "items") else items
    wrong = items
    if isinstance(pairs, Iterable):
        keys, values = [], []
        for wrong in pairs:
            try:
                key, value = wrong
            except (TypeError, ValueError):
                break
            keys.append(key)
            values.append(value)
        else:
            return keys, values
    raise TypeError(
        f"items must be a mapping of keys to values, or pairs of a key and a value, not {wrong!r}"
    )
