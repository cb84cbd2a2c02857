"""`tamis.Workload`: which absent keys are queried, and how often."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from tamis._checks import (
    MAX_KEYS,
    check_int,
    check_iterable,
    check_number,
    check_parts,
    check_share,
    check_workload,
    warn_if_kinds_differ,
)
from tamis._columns import as_list, pieces, show_key
from tamis._format import facts_html, format_rate
from tamis.planning.stacked.frequencies import Frequencies, Steps, Zipf
from tamis.workload.counts import QueryCosts, ValueCounts, check_weights
from tamis.workload.drift import Drift, by_rank, by_value
from tamis.workload.unseen import LogStatistics, Method, Unseen

if TYPE_CHECKING:
    from tamis._types import FilePath, Keys

MAX_DISTINCT = 50_000_000
"""The default number of distinct negatives that are counted exactly."""

_ESTIMATED: set[Method] = {"leave-one-out", "split in time"}
"""How ℓ is estimated from a log whose queries are all counted."""


class Workload:
    """Which absent keys (negatives) are queried, and how often.

    Created from a query log (`from_queries`, `from_batches`), from counts (`from_counts`), or from
    a distribution without values (`zipf`, `from_shape`). ``curve`` is ψ; ``unseen`` (ℓ) is the
    fraction of the queries for absent keys that are for values not in the workload; ``present`` is
    the fraction of all queries that are for keys in the set, and ``removed`` their number;
    ``error`` is by how much a count may be too low. ``unseen_method`` says how ℓ was estimated,
    and ``discount`` is subtracted from each count to smooth the frequencies. If false positives
    differ in cost, ``costs`` has the mean cost of a false positive of each value. Values are then
    ordered by their total cost, and plans minimize the expected cost.

    >>> w = Workload.from_queries(["a", "b", "a", "k", "a", "b", "c"], keys=["k"])
    >>> w.head(2), w.removed, round(w.unseen, 3)
    (['a', 'b'], 1, 0.167)
    >>> round(w.psi(2), 3), w.unseen_method
    (0.722, 'leave-one-out')
    """

    def __init__(
        self,
        curve: Frequencies,
        *,
        values: Any = None,
        counts: npt.NDArray[Any] | None = None,
        costs: npt.NDArray[Any] | None = None,
        removed: float = 0,
        present: float = 0.0,
        error: float = 0,
        unseen_method: Method = "given",
        discount: float = 0.0,
    ) -> None:
        if not hasattr(curve, "psi"):
            raise TypeError(
                "use Workload.from_queries(log, keys=keys), from_counts or zipf to make a workload"
            )
        self.curve = curve
        self.counts = counts
        self.costs = costs
        self.removed = removed
        self.present = present
        self.error = error
        self.unseen_method = unseen_method
        self.discount = discount
        self._values = values

    @classmethod
    def from_queries(
        cls, queries: Keys, *, keys: Keys | None = None, costs: npt.ArrayLike | None = None
    ) -> Self:
        """Count the queries of a log, oldest first; queries for ``keys`` are removed.

        ``costs`` has the cost of a false positive of each query, in any unit.

        The fraction ℓ of later queries for unseen values is estimated by leaving one out and by
        splitting the log in time. The larger estimate is used; ``unseen_method`` says which it is.
        The values share the remaining 1 − ℓ in proportion to their smoothed counts
        (`tamis.workload.unseen`).
        """
        if keys is not None:
            warn_if_kinds_differ(keys, queries, "queries")
        batches = [queries] if costs is not None else pieces(queries)
        batch = None if costs is None else [costs]
        return cls.from_batches(batches, keys=keys, costs=batch, max_distinct=MAX_KEYS)

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Keys],
        *,
        keys: Keys | None = None,
        costs: Iterable[npt.ArrayLike] | None = None,
        max_distinct: SupportsIndex = MAX_DISTINCT,
    ) -> Self:
        """Count the queries of a log in batches, which need not fit in memory together.

        At most about twice ``max_distinct`` values are held in memory. If there are more, counts
        are too low by up to ``error``, which is at most the number of queries divided by
        ``max_distinct``, and the queries not counted are part of ``unseen``. ``costs`` has the
        costs of the same queries, in the same batches.

        >>> w = Workload.from_batches([[1, 1, 2], [1, 3, 4]], max_distinct=2)
        >>> w.head(1), w.error, round(w.unseen, 2)
        ([1], 1, 0.67)
        """
        max_distinct = check_int("max_distinct", max_distinct, MAX_KEYS)
        if max_distinct == 0:
            raise ValueError(f"max_distinct must be from 1 to {MAX_KEYS}, not 0")
        check_iterable("batches", batches, "an iterable of batches of queries")
        counter = ValueCounts(max_distinct, keys)
        query_costs = None if costs is None else QueryCosts(max_distinct, keys)
        if query_costs is not None and costs is not None:
            check_iterable("costs", costs, "an iterable of batches of costs, or None")
            batches = query_costs.add_batches(
                batches, (check_weights("costs", each) for each in costs)
            )
        for batch in batches:
            counter.add(batch)
        counts, values = counter.ranked()
        return cls._counted(counter, counts, values, counter.unseen(), query_costs)

    @classmethod
    def from_counts(
        cls,
        values: Keys,
        counts: npt.ArrayLike,
        *,
        costs: npt.ArrayLike | None = None,
        unseen: float = 0.0,
        keys: Keys | None = None,
    ) -> Self:
        """Create a workload from values and how often each is queried.

        ``counts`` can be any numbers in proportion to the frequencies; they are not smoothed.
        ``unseen`` is the fraction of queries for other values; counts have no order in time, and it
        is not estimated from them. The counts of equal values are added up; values with a count
        of 0 are dropped. ``costs`` has the cost of a false positive of each value, in any unit.

        >>> Workload.from_counts(["a", "b"], [1, 3], unseen=0.2).psi(1)
        0.6000000000000001
        >>> w = Workload.from_counts(["a", "b"], [1, 3], costs=[60, 10])
        >>> w.head(1), w.psi(1), w.mean_cost
        (['a'], 0.25, 22.5)
        """
        weights = check_weights("counts", counts)
        unseen = check_share("unseen", unseen)
        counter = ValueCounts(MAX_KEYS, keys)
        try:
            counter.add(values, weights)
        except IndexError:
            raise ValueError(_lengths(values, weights)) from None
        ranked, distinct = counter.ranked()
        if counter.counted != len(weights):
            raise ValueError(_lengths(values, weights))
        queried = int(np.count_nonzero(ranked))
        given = Unseen(unseen, "given", 0.0)
        query_costs = None
        if costs is not None:
            query_costs = QueryCosts(MAX_KEYS, keys)
            each = check_weights("costs", costs)
            if len(each) != len(weights):
                raise ValueError(
                    f"costs must have one item per value, not {len(each)} for {len(weights)}"
                )
            query_costs.add(values, weights * each)
        return cls._counted(counter, ranked[:queried], distinct[:queried], given, query_costs)

    @classmethod
    def from_shape(cls, frequencies: npt.ArrayLike, *, unseen: float = 0.0) -> Self:
        """Create a workload without values from the frequency of each rank, in any order and unit.

        >>> Workload.from_shape([8, 1, 1], unseen=0.5).psi(1)
        0.4
        """
        weights = np.sort(check_weights("frequencies", frequencies))[::-1]
        weights = weights[: np.count_nonzero(weights)]
        total = 1 - check_share("unseen", unseen)
        return cls(Steps.of(weights, total=total), counts=weights)

    @classmethod
    def zipf(
        cls, exponent: float, universe: SupportsIndex, sample: SupportsIndex | None = None
    ) -> Self:
        """Create a Zipf workload: frequencies 1/rank^exponent, with ``sample`` known ranks.

        >>> w = Workload.zipf(exponent=1.0, universe=10**8, sample=5 * 10**7)
        >>> round(w.psi(1_000_000), 4), round(w.unseen, 4)
        (0.7576, 0.0365)
        """
        exponent = check_number(
            "exponent", exponent, "a number from 0 to 16", minimum=0, maximum=16
        )
        universe = check_int("universe", universe, MAX_KEYS)
        if universe == 0:
            raise ValueError(f"universe must be from 1 to {MAX_KEYS}, not 0")
        ranks = universe if sample is None else check_int("sample", sample, universe)
        return cls(Zipf(exponent, universe, ranks))

    @classmethod
    def _counted(
        cls,
        counter: ValueCounts,
        counts: npt.NDArray[Any],
        values: Any,
        unseen: Unseen,
        query_costs: QueryCosts | None = None,
    ) -> Self:
        queries, costs = counter.total + counter.removed, None
        if query_costs is not None:
            values, counts, costs = query_costs.order(values, counts)
        return cls(
            Steps.of(counts - unseen.discount, total=1 - unseen.share),
            values=values,
            counts=counts,
            costs=costs,
            removed=counter.removed,
            present=counter.removed / queries if queries else 0.0,
            error=counter.error,
            unseen_method=unseen.method,
            discount=unseen.discount,
        )

    def with_log(self, queries: Keys, *, keys: Keys | None = None) -> Workload:
        """Return this workload with ℓ as estimated from a log, if that is larger.

        ``queries`` are in order, oldest first; queries for ``keys`` are ignored.
        """
        other = type(self).from_queries(queries, keys=keys)
        if self.counts is None or not len(other) or other.unseen <= self.unseen:
            return self
        changed = copy.copy(self)
        changed.curve = Steps.of(self.counts - self.discount, total=1 - other.unseen)
        changed.unseen_method = other.unseen_method
        return changed

    @classmethod
    def from_log_statistics(
        cls, values: Keys, counts: npt.NDArray[Any], log: LogStatistics, removed: int = 0
    ) -> Self:
        """Create a workload of the most frequent values of a log that was counted elsewhere.

        ``counts`` has the count of each value, in descending order; ``log`` covers all values.
        """
        unseen = log.unseen()
        kept = int(counts.sum())
        if kept < log.total:
            # Queries for values that were not kept are unseen too, like values that occur once.
            once = int(np.count_nonzero(counts == 1))
            share = max(unseen.share, (log.total - kept + once) / log.total)
            method = unseen.method if share == unseen.share else "not counted"
            unseen = Unseen(min(share, 1.0), method, unseen.discount)
        return cls(
            Steps.of(counts - unseen.discount, total=1 - unseen.share),
            values=values,
            counts=counts,
            removed=removed,
            present=removed / (removed + log.total) if removed else 0.0,
            unseen_method=unseen.method,
            discount=unseen.discount,
        )

    @classmethod
    def merge(cls, *parts: Workload, ordered: bool = False) -> Self:
        """Merge workloads that were counted from parts of one log, perhaps on several machines.

        Counts of equal values are added up, and the fraction ℓ of unseen values is estimated again,
        from all of them: a value that is new to one part may be in another. If the parts are
        ``ordered``, oldest first, the log is also split in time, between parts. If ℓ was given for
        a part, or not all of its queries were counted, ℓ is the mean over all queries.

        >>> parts = [Workload.from_queries(log) for log in (["a", "a", "b"], ["b", "b", "c"])]
        >>> w = Workload.merge(*parts)
        >>> w.head(1), w.counts.tolist(), round(w.unseen, 3)
        (['b'], [3, 2, 1], 0.167)
        """
        check_parts(parts, Workload, "a workload")
        counter = ValueCounts(MAX_KEYS)
        query_costs = (
            QueryCosts(MAX_KEYS) if any(part.costs is not None for part in parts) else None
        )
        queries: list[float] = []
        for i, part in enumerate(parts):
            if part._values is None or part.counts is None:
                raise ValueError(f"parts[{i}] must be a workload with values, not {part!r}")
            counter.add(part._values, part.counts)
            if query_costs is not None:
                if part.costs is None:
                    raise ValueError(f"parts[{i}] must have costs, because other parts do")
                query_costs.add(part._values, part.counts * part.costs)
            estimated = part.unseen_method in _ESTIMATED
            known = 1.0 if estimated else 1 - part.unseen
            queries.append(float(part.counts.sum()) / known if known else 0.0)
        counts, values = counter.ranked()
        unseen = counter.unseen(ordered=ordered)
        methods = {part.unseen_method for part in parts if len(part)}
        if not methods <= _ESTIMATED:
            total = sum(queries)
            share = 1 - counter.total / total if total else 1.0
            method: Method = "given" if "given" in methods else "not counted"
            unseen = Unseen(min(max(share, 0.0), 1.0), method, 0.0)
        counter.removed = sum(part.removed for part in parts)
        counter.error = sum(part.error for part in parts)
        return cls._counted(counter, counts, values, unseen, query_costs)

    def __len__(self) -> int:
        """Return the number of known negatives."""
        return self.curve.size

    @property
    def unseen(self) -> float:
        """The fraction of the queries for absent keys that are for unknown values (ℓ)."""
        return max(0.0, 1 - float(self.curve.psi(self.curve.size)))

    @property
    def cost_curve(self) -> Frequencies:
        """The fraction of the expected cost that is due to the first n negatives, by n.

        Without costs it is ψ. A query for an unknown value has the mean cost of the others.
        """
        if self.costs is None or self.counts is None:
            return self.curve
        return Steps.of((self.counts - self.discount) * self.costs, total=1 - self.unseen)

    @property
    def mean_cost(self) -> float:
        """The mean cost of a false positive, over the queries for known negatives; 1 by default."""
        if self.costs is None or self.counts is None or not self.counts.sum():
            return 1.0
        return float((self.counts * self.costs).sum() / self.counts.sum())

    @property
    def values(self) -> Keys | None:
        """The known negatives, most frequent first; `None` for a workload without values."""
        return self._values  # type: ignore[no-any-return]

    def psi(self, n: SupportsIndex) -> float:
        """The fraction of the queries for absent keys that are for the n most frequent ones (ψ)."""
        return float(self.curve.psi(check_int("n", n, MAX_KEYS)))

    def head(self, n: SupportsIndex) -> Keys:
        """Return the n most frequent negatives, in the type they were given in."""
        n = check_int("n", n, MAX_KEYS)
        if self._values is None:
            raise ValueError(
                "this workload has no values; pass the negatives themselves, most frequent first"
            )
        return self._values[:n]  # type: ignore[no-any-return]

    def warn_if_unlike(self, keys: Any) -> None:
        """Warn if the values of the workload are of another kind than these keys."""
        if self._values is not None:
            warn_if_kinds_differ(keys, self._values[:1], "values of the workload", stacklevel=4)

    def quantiles(self, shares: Sequence[float]) -> list[int | None]:
        """Return how many negatives get each fraction of the queries; `None` if all get less.

        >>> Workload.zipf(1.0, 10**8, 5 * 10**7).quantiles([0.5, 0.9, 0.99])
        [7493, 14960009, None]
        """
        check_iterable("shares", shares, "a list of numbers from 0 to 1")
        known = 1 - self.unseen
        return [
            self.curve.rank(share) if check_share("shares", share) <= known else None
            for share in shares
        ]

    def drift(self, other: Workload) -> Drift:
        """Compare with a later workload: how far the queries have drifted.

        Values are compared if both workloads have them, otherwise ranks.

        >>> before = Workload.from_counts(["a", "b"], [3, 1])
        >>> after = Workload.from_counts(["a", "b"], [1, 3])
        >>> d = before.drift(after)
        >>> d.total_variation, d.psi(1)
        (0.5, (0.75, 0.25))
        """
        check_workload(other, "other", optional=False)
        if self._values is None or other._values is None:
            return by_rank(self.curve, other.curve)
        return by_value(self._values, self._frequencies(), other._values, other._frequencies())

    def _frequencies(self) -> npt.NDArray[np.float64]:
        assert self.counts is not None
        smoothed = self.counts - self.discount
        total = smoothed.sum()
        return np.asarray(smoothed * ((1 - self.unseen) / total if total else 0.0))

    def save(self, path: FilePath) -> None:
        """Write the values with their counts and costs to a Parquet file, atomically."""
        from tamis.workload.file import save

        save(self, path)

    @classmethod
    def load(cls, path: FilePath) -> Self:
        """Read a workload that `save` wrote; its values are an Arrow column.

        `FormatError` for any other file, or a damaged one.
        """
        from tamis.workload.file import load

        return load(cls, path)

    def plot(self, ax: Any = None) -> Any:
        """Plot the frequency of each rank on logarithmic scales; return the axes."""
        from tamis.plotting import draw_workload

        return draw_workload(self, ax)

    def __repr__(self) -> str:
        items = "values" if self._values is not None else "ranks"
        return f"<tamis.Workload: {len(self):,} {items}, {format_rate(self.unseen)} unseen>"

    def _repr_html_(self) -> str:
        facts = {
            "known negatives": f"{len(self):,}",
            "queries for others": format_rate(self.unseen),
            "queries for keys in the set": format_rate(self.present),
        }
        for share, n in zip((0.5, 0.9), self.quantiles((0.5, 0.9)), strict=True):
            if n is not None:
                facts[f"{format_rate(share)} of the queries"] = f"for the {n:,} most frequent"
        if self._values is not None and len(self):
            facts["most frequent"] = ", ".join(map(show_key, as_list(self._values[:5])))
        return facts_html("tamis.Workload", facts)

    def __str__(self) -> str:
        how = "" if self.unseen_method == "given" else f" ({self.unseen_method})"
        lines = [
            f"{len(self):,} known negatives; {format_rate(self.unseen)} of the queries are for "
            f"others{how}"
        ]
        if self.removed:
            lines.append(
                f"{self.removed:,} queries ({format_rate(self.present)}) for keys in the set were "
                "removed"
            )
        if self.error:
            lines.append(f"counts are too low by up to {self.error:,}")
        if self.costs is not None:
            lines.append(f"a false positive costs {self.mean_cost:.4g} on average")
        first = "most frequent" if self.costs is None else "costliest"
        shares = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
        for share, n in zip(shares, self.quantiles(shares), strict=True):
            if n is not None:
                lines.append(f"{format_rate(share):>6} of the queries are for the {n:,} {first}")
        if self._values is not None and len(self):
            lines.append(f"{first}: {', '.join(map(show_key, as_list(self._values[:5])))}")
        return "\n".join(lines)


def _lengths(values: Any, weights: npt.NDArray[Any]) -> str:
    given = f", not {len(values):,} and {len(weights):,}" if hasattr(values, "__len__") else ""
    return f"values and counts must have the same length{given}"
