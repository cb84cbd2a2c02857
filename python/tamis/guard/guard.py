"""`Guard`: answers queries from the filter and the store, writes to both, and counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from tamis._checks import MAX_SECONDS, check_number, one_of
from tamis._format import facts_html, format_rate, format_size
from tamis._native import Batch, plain_key, plain_keys
from tamis._types import FilePath
from tamis.errors import LeaseError, StoreError
from tamis.filters import Filter
from tamis.filters.adaptive_stacked import AdaptiveStacked
from tamis.filters.telescoping import AdaptiveQuotient
from tamis.guard.adapter import Adapter
from tamis.guard.filter_choice import check_is_filter, check_is_store, choose_filter
from tamis.guard.keys import apply_by_type, read_pairs, to_list
from tamis.guard.log import Log
from tamis.guard.replica import run_regions
from tamis.guard.statistics import (
    Counters,
    GuardStats,
    Rates,
    Window,
)
from tamis.guard.trust import OnFailure, Trust
from tamis.planning.costs import duration
from tamis.stores.contract import GivenKey, GivenKeys, HashRows, PlainKey, Store, Value

if TYPE_CHECKING:
    from tamis.guard.page import Page
    from tamis.workload import Workload


_USUAL_VALUES = {bytes, str}
"""Types of values that every store takes."""


class Lookups(NamedTuple):
    """A batch of queries, before the values of the accepted keys are read."""

    filter: Any
    given: list[Any]
    accepted: dict[int, PlainKey]
    """The keys that the filter accepts, by their indices, as the store takes them."""
    counts: list[int]
    """The write counts of the regions at that time."""

    @property
    def distinct(self) -> list[PlainKey]:
        """The keys to read from the store."""
        return list(dict.fromkeys(self.accepted.values()))


class FalsePositives(NamedTuple):
    """False positives for the filter to adapt to, with the write counts of the regions."""

    keys: list[Any]
    hashes: HashRows
    counts: list[int]


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
    "no" from the filter while it holds the lease or is within ``max_staleness``.

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
        filter: Any = None,
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
        one_of("on_failure", on_failure, ("raise", "filter"))
        staleness = min(duration("max_staleness", max_staleness), MAX_SECONDS)
        seconds = check_number(
            "lease",
            lease,
            f"a number of seconds above 0 and at most {MAX_SECONDS}",
            above=0,
            most=MAX_SECONDS,
        )
        if adaptations_per_second is not None:
            what = "a number of 0 or more, or None for no limit"
            adaptations_per_second = check_number(
                "adaptations_per_second", adaptations_per_second, what, least=0
            )
        if not isinstance(name, str) or not name:
            raise ValueError(f"name must be a non-empty string, not {name!r}")
        if not isinstance(snapshot, str | bytes | os.PathLike | None):
            raise TypeError(f"snapshot must be the path of a file, not {snapshot!r}")
        if share and snapshot is None:
            raise ValueError("pass snapshot=, the file to share, with share=True")
        self.store, self.name, self._log = store, name, Log(name)
        self.chosen: str | None = None
        """Which filter was chosen, and why; `None` if one was passed in."""
        if filter is None and share and read_only:
            pass  # the snapshot has one
        elif filter is None:
            filter, self.chosen = choose_filter(store, bits_per_key, workload)
            self._log.info("chose %s", self.chosen)
        elif bits_per_key is not None or workload is not None:
            raise ValueError("pass bits_per_key and workload only without a filter")
        if filter is not None:
            check_is_filter(filter)
        self._counters = Counters()
        self._trust = Trust(
            store,
            filter,
            self._counters,
            log=self._log,
            key=key,
            lease=seconds,
            snapshot=snapshot,
            max_staleness=staleness,
            on_failure=on_failure,
            share=bool(share),
            read_only=bool(read_only),
        )
        self._replica = self._trust.replica
        self._gate = self._replica.gate
        self._lookup = self._gate.lookup
        self._adapter = Adapter(self._trust, self._counters, adaptations_per_second)
        self._rates = Rates(self._gate, self._counters, on_rate, self._log)
        self._page: Page | None = None
        # Keys that are tuples or UUIDs have another form for the filter and the store.
        translates = getattr(store, "translates_keys", False)
        self._to_plain: Callable[[Any], PlainKey] = (
            store.to_plain if translates else plain_key  # type: ignore[attr-defined]
        )
        self._from_plain = store.from_plain if translates else None  # type: ignore[attr-defined]

    @property
    def filter(self) -> Filter:
        """The current filter; a rebuild replaces it with a new one."""
        filter: Filter = self._replica.filter
        return filter

    # Queries.

    def get(self, key: GivenKey) -> Value | None:
        """Return the value of a key, or `None` if it is absent."""
        if self._from_plain is not None:
            key = self._to_plain(key)
        lookup = self._lookup(key)  # type: ignore[arg-type]
        if lookup is None:
            return None
        if not lookup.accepted:
            if not self._trust.refresh():
                return self._pass_on([lookup.key])[0]
            if not self._gate.accepts(lookup):
                self._gate.count_denied(1)
                return None
        counts = self._replica.regions.counts.copy()
        value = self.store.get_many([lookup.key])[0]
        if value is not None:
            self._gate.count_found(1)
            return value
        hashes = lookup.hashes
        self._rates.record(hashes[:, 1].tolist())
        self._adapter.adapt([key], hashes, counts)
        return None

    def get_many(self, keys: GivenKeys) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent.

        Each distinct key that the filter accepts is read once.
        """
        given = to_list(keys)
        if self._from_plain is not None:
            given = [self._to_plain(key) for key in given]
        filter = self._gate.current_filter()
        if filter is None:
            if not self._trust.refresh():
                return self._pass_on(plain_keys(given))
            filter = self._replica.filter
        lookups = self._look_up(filter, given)
        answers, wrong = self._answer(lookups, self._read(lookups.distinct))
        if wrong.keys:
            self._adapter.adapt(*wrong)
        return answers

    def _look_up(self, filter: Any, given: list[Any]) -> Lookups:
        """Return which keys the filter accepts, before their values are read."""
        indices = np.flatnonzero(apply_by_type(filter.contains, given)).tolist()
        accepted = dict(zip(indices, plain_keys([given[i] for i in indices]), strict=True))
        return Lookups(filter, given, accepted, self._replica.regions.counts.copy())

    def _answer(
        self, lookups: Lookups, found: dict[PlainKey, Value | None]
    ) -> tuple[list[Value | None], FalsePositives]:
        """Return the answers and the false positives, given the values read; count both."""
        filter, given, accepted, counts = lookups
        answers: list[Value | None] = [None] * len(given)
        for i, key in accepted.items():
            answers[i] = found[key]
        wrong = [i for i in accepted if answers[i] is None]
        self._gate.count_denied(len(given) - len(accepted))
        self._gate.count_found(len(accepted) - len(wrong))
        hashes = self._replica.hashes([given[i] for i in wrong])
        self._rates.record(hashes[:, 1].tolist())
        once = list({accepted[i]: n for n, i in enumerate(wrong)}.values())
        # A stack counts the queries for each key; other filters adapt to a key once.
        used = range(len(wrong)) if isinstance(filter, AdaptiveStacked) else once
        return answers, FalsePositives([given[wrong[n]] for n in used], hashes[used], counts)

    def _read(self, keys: list[PlainKey]) -> dict[PlainKey, Value | None]:
        return dict(zip(keys, self.store.get_many(keys), strict=True)) if keys else {}

    def _pass_on(self, keys: list[PlainKey]) -> list[Value | None]:
        """Read keys from the store, without the filter."""
        found = self._read(list(dict.fromkeys(keys)))
        self._counters.count(queries=len(keys), passed=len(keys))
        return [found[key] for key in keys]

    def __contains__(self, key: GivenKey) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[PlainKey]:
        """Iterate over the keys of the store, text as bytes."""
        _, parts = self.store.contents()
        for part in parts:
            yield from part if self._from_plain is None else map(self._from_plain, part)

    # Writes.

    def put(self, key: GivenKey, value: Value) -> None:
        """Write a key and its value."""
        self._check_value(key, value)
        self._put([self._to_plain(key)], [value])

    def put_many(self, items: Any) -> None:
        """Write keys and values, given as a mapping or as pairs, in one commit."""
        given, values = read_pairs(items)
        self._check_values(given, values)
        keys: list[PlainKey] | None = None
        if self._from_plain is None:
            with suppress(Exception):  # which is raised again for the key itself
                keys = plain_keys(given)
        if keys is None:
            keys = [self._to_plain(key) for key in given]
        last = dict(zip(keys, values, strict=True))
        if last:
            self._put(list(last), list(last.values()))

    def _check_values(self, keys: list[Any], values: list[Any]) -> None:
        types = {*map(type, values)}
        if not types <= _USUAL_VALUES:
            for key, value in zip(keys, values, strict=True):
                self._check_value(key, value)

    def _check_value(self, key: Any, value: Any) -> None:
        # An existing table has values of any type, as its driver takes and gives them.
        if value is None or not (self.store.shared or isinstance(value, (bytes, str))):
            raise TypeError(
                f"the value of key {key!r} must be bytes or str, not {value!r} "
                f"(of type {type(value).__name__})"
            )

    def _put(self, keys: list[PlainKey], values: list[Value]) -> None:
        trust, replica, batch = self._trust, self._replica, self._gate.batch(keys)
        trust.require_lease()
        try:
            with replica.regions.write_locked(self._write_regions(batch)):
                new = self._new_keys(keys, batch)
                inserted, fresh = keys, batch.hashes
                if len(new) < len(keys):
                    inserted, fresh = [keys[i] for i in new], fresh[new]
                if new:
                    replica.insert(inserted, fresh)
                try:
                    trust.commit(lambda owner: self.store.put_many(keys, values, owner), keys, new)
                except (LeaseError, TypeError, ValueError):  # nothing was written
                    replica.remote.end_put(fresh)
                    replica.remove(inserted)
                    raise
                except BaseException:
                    replica.mark_unsettled(inserted, fresh)
                    replica.remote.end_put(fresh)
                    raise
                replica.remote.end_put(fresh)
        except Exception as error:
            # A store that is down is not tried again now; the next write settles.
            if not isinstance(error, StoreError):
                with suppress(Exception):
                    trust.settle()
            raise

    def delete(self, key: GivenKey) -> bool:
        """Delete a key; return whether it was present."""
        return self._delete([self._to_plain(key)])[0]

    def delete_many(self, keys: GivenKeys) -> list[bool]:
        """Delete keys in one commit; return for each whether it was present."""
        given = to_list(keys)
        if self._from_plain is None:
            given = plain_keys(given)
        else:
            given = [self._to_plain(key) for key in given]
        distinct = list(dict.fromkeys(given))
        if len(distinct) == len(given):
            return self._delete(given) if given else []
        existed = dict(zip(distinct, self._delete(distinct), strict=True))
        # A key that is given twice is present only the first time.
        return [existed.pop(key, False) for key in given]

    def _delete(self, keys: list[PlainKey]) -> list[bool]:
        trust, replica, filter = self._trust, self._replica, self._replica.filter
        batch = self._gate.batch(keys)
        trust.require_lease()
        regions = self._write_regions(batch)
        in_runs = isinstance(filter, AdaptiveQuotient)
        if in_runs and regions is not None:
            regions = run_regions(filter, regions)
        with replica.regions.write_locked(regions):
            before = None
            if in_runs and filter is replica.filter:
                before = filter.capacity, replica.replays
            commit = trust.commit(lambda owner: self.store.delete_many(keys, owner))
            existed = commit.existed
            replica.remove([*compress(keys, existed)], before)
        return existed

    # State.

    @property
    def stats(self) -> GuardStats:
        """Counts of queries, reads saved and false positives so far."""
        denied, found = self._gate.denied, self._gate.found
        return self._counters.read(
            trusted=self._trust.freshness.trusted,
            expected_fpr=self.filter.expected_fpr,
            queries=denied + found,
            reads_saved=denied,
            true_positives=found,
            change_checks=self._gate.change_checks,
            memory=-(-self.filter.size_in_bits // 8),
            rebuild_seconds=self._trust.rebuild_seconds,
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
        return self._rates.history()

    def plot(self, ax: Any = None) -> Any:
        """Plot the observed and the expected false-positive rate over time; return the axes."""
        from tamis.plotting import draw_history

        return draw_history(self.history, self.filter.expected_fpr, ax)

    def serve(self, port: int = 0, *, host: str = "127.0.0.1", token: str | None = None) -> Page:
        """Serve a web page with the guard's statistics until the page or the guard is closed.

        ``page.url`` is its address; port 0 selects a free port. A ``host`` other than the loopback
        requires a ``token``, which becomes part of the URL. While the page is open, the guard
        samples queries for absent keys, which costs about a microsecond per query.
        """
        from tamis.guard.page import Page

        if self._page is not None or self.closed:
            state = "closed" if self._page is None else f"served already, at {self._page.url}"
            raise ValueError(f"cannot serve a guard that is {state}")
        self._page = page = Page(self, port, host, token)
        watched = {"get": page.sample.watch_get, "get_many": page.sample.watch_get_many}
        for name, watch in watched.items():
            setattr(self, name, watch(getattr(self, name)))
        return page

    def _page_closed(self) -> None:
        for name in ("get", "get_many"):
            self.__dict__.pop(name, None)
        self._page = None

    @property
    def closed(self) -> bool:
        """Whether the guard was closed."""
        return self._trust.closed

    def close(self) -> None:
        """Write the snapshot if there is a path for it, release the lease and close the store."""
        if self._trust.closed or self._gate.forked:
            return
        try:
            if self._page is not None:
                self._page.close()
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

    def _repr_html_(self) -> str:
        s = self.stats
        facts = {
            "filter": f"{type(self.filter).__name__}, {format_size(self.filter.size_in_bits)}",
            "store": type(self.store).__name__,
            "queries": f"{s.queries:,}",
            "reads saved": f"{s.reads_saved:,}",
            "reads wasted": f"{s.false_positives:,}",
            "observed false-positive rate": format_rate(s.observed_fpr) if s.negatives else "–",
            "expected false-positive rate": format_rate(s.expected_fpr),
        }
        return facts_html("tamis.Guard", facts)

    # The filter.

    def _write_regions(self, batch: Batch) -> list[int] | None:
        # In a shared table a write may first have to replay others' changes, in any region.
        return None if self.store.shared else batch.regions

    def _new_keys(self, keys: list[PlainKey], batch: Batch) -> list[int]:
        """Return the indices of the keys that the filter does not have yet."""
        stored: set[int] = set()
        if accepted := self._gate.accepted(batch):
            values = self.store.get_many([keys[i] for i in accepted])
            stored = {i for i, value in zip(accepted, values, strict=True) if value is not None}
        unsettled = self._replica.unsettled
        if not (stored or unsettled):
            return [*range(len(keys))]
        return [i for i, key in enumerate(keys) if i not in stored and key not in unsettled]
