"""The situation that advice is for, the choices that fit it, and their cost.

A query for a key in the set costs the time of the filter; the read that follows is not wasted. A
query for an absent key costs that time, and a wasted read if the filter accepts it:

    cost = π·(t_present + ν·d) + (1 − π)·(t_absent + α·c)

where π is the fraction of queries for keys in the set, α the false-positive rate and c the cost of
a wasted read. For filters that forget, ν is the fraction of keys rejected and d the cost of that.

References: Deeds, Hentschel, Idreos 2021 (stacks, theorem 3); Lee, McCauley, Singh, Stein 2021
(adaptive filters); Liu, Zheng, Shen, Chen 2020, figure 12 (when learned and stable filters suit).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from tamis._format import format_duration, format_rate
from tamis.planning.kinds import Option, check_seconds
from tamis.planning.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tamis._types import Keys
    from tamis.collection import Collection
    from tamis.filters.contract import Filter
    from tamis.workload import Workload

Floats = npt.NDArray[np.float64]

NEEDS = (
    "adversary",
    "classifier",
    "delete",
    "false negatives allowed",
    "insert",
    "store",
    "stream",
)
"""Operations that a filter must support, and facts that it may use."""


class Gaps(NamedTuple):
    """Gaps before a value is repeated, in records, and the fraction of records with each gap."""

    records: Floats
    shares: Floats

    def within(self, limit: float) -> float:
        """Return the fraction of records whose value occurred in the previous ``limit`` records."""
        return float(self.shares[self.records <= limit].sum())

    def distinct(self, records: float) -> float:
        """Predict the number of distinct values in a run of ``records`` records.

        A record repeated after g is not the first of its value with probability 1 − g/n.
        """
        again = self.shares @ np.clip(1 - self.records / records, 0.0, None)
        return records * (1 - float(again))


@dataclass(frozen=True)
class Situation:
    """The inputs of an advice: keys, budget, queries and costs.

    ``queries`` (H) is the expected number of queries for absent keys, ``scale`` how much slower
    this machine is than the table of times, ``gaps`` after how many records of a stream values are
    repeated. With ``fpr``, each filter is the smallest with at most this rate, and ``budget`` is
    only an upper limit. ``turnover`` (τ) is how many keys are replaced during the queries, per key;
    see `tamis.advice.turnover`.
    """

    keys: int
    budget: int
    workload: Workload | None
    needs: frozenset[str]
    present: float
    queries: float
    miss_cost: float
    denial_cost: float
    scale: float = 1.0
    gaps: Gaps | None = None
    fpr: float | None = None
    turnover: float = 0.0

    @property
    def sizing(self) -> dict[str, Any]:
        """The rate or the budget per key, as the argument of a size or a plan."""
        if self.fpr is not None:
            return {"fpr": self.fpr}
        return {"bits_per_key": self.bits_per_key}

    @property
    def bits_per_key(self) -> float:
        """The budget per key."""
        return self.budget / max(self.keys, 1)

    @property
    def distinct(self) -> float:
        """The expected number of distinct absent keys among the queries.

        Σ 1 − (1 − f)^H over the known ones; each query for an unseen one is assumed to be new.
        """
        return self.distinct_of(self.queries)

    def distinct_of(self, queries: float) -> float:
        """Predict the number of distinct absent keys among this many queries for absent keys."""
        if self.workload is None:
            return queries
        known = distinct_known(self.workload, queries)
        return min(queries, known + self.workload.unseen * queries)

    def check(self, option: Option, *, present: bool) -> float:
        """Return the time of one query, in seconds."""
        return check_seconds(option.check, self.keys, present, self.scale)

    def cost(self, choice: Choice) -> float:
        """Predict the mean cost of a query, in seconds."""
        present = choice.present_time + choice.expected_fnr * self.denial_cost
        absent = choice.absent_time + choice.weighted_fpr * self.miss_cost
        return self.present * present + (1 - self.present) * absent


@dataclass(frozen=True, repr=False)
class Choice:
    """A filter that can be built, and its predicted size, rate and cost.

    ``expected_fpr`` is the rate under the workload, ``fpr_bound`` the bound under any workload;
    ``expected_fnr`` is the fraction of keys rejected by a filter that forgets; ``bits`` is the
    size, after adapting if the filter grows by it. Times and ``cost``, the mean cost of a query,
    are in seconds. ``plan`` is set for stacked filters. `Advice.measure` sets the ``measured_``
    fields.
    """

    name: str
    family: str
    filter: str
    arguments: dict[str, Any]
    expected_fpr: float
    fpr_bound: float
    bits: int
    keys: int
    absent_time: float
    present_time: float
    reason: str
    expected_fnr: float = 0.0
    cost: float = math.nan
    plan: Plan | None = None
    measured_fpr: float | None = None
    measured_error: float | None = None
    measured_fnr: float | None = None
    measured_bits: int | None = None
    measured_time: float | None = None
    measured_cost: float | None = None

    @property
    def bits_per_key(self) -> float:
        """The predicted size per key."""
        return self.bits / max(self.keys, 1)

    @property
    def weighted_fpr(self) -> float:
        """The expected rate; if the workload has costs, weighted by them."""
        if self.plan is None or self.plan.expected_cost is None or self.plan.workload is None:
            return self.expected_fpr
        return self.plan.expected_cost / (self.plan.workload.mean_cost or 1.0)

    def __repr__(self) -> str:
        return (
            f"<{self.name}: {self.bits_per_key:.2f} bits per key, expected rate "
            f"{format_rate(self.expected_fpr)}, {format_duration(self.cost)} per query>"
        )

    @overload
    def build(self, keys: Mapping[str, Keys], **arguments: Any) -> Collection: ...
    @overload
    def build(self, keys: Keys, **arguments: Any) -> Filter: ...
    def build(self, keys: Any, **arguments: Any) -> Filter | Collection:
        """Build the filter of these keys; other arguments are passed to the ``build`` of its class.

        >>> import tamis
        >>> f = tamis.advise(1000, bits_per_key=10, needs={"delete"}).best.build(range(1000))
        >>> type(f).__name__, bool(f.contains(range(1000)).all())
        ('Quotient', True)
        """
        if self.plan is not None:
            return self.plan.build(keys, **arguments)
        import tamis

        built: Filter = getattr(tamis, self.filter).build(keys, **{**self.arguments, **arguments})
        return built


@dataclass(frozen=True)
class RuledOut:
    """A filter that does not fit, and why."""

    name: str
    reason: str


Found = Choice | RuledOut


NEAR = 1.02
"""Costs within this factor count as equal: times differ by more between machines."""


def ranked(situation: Situation, found: list[Choice]) -> list[Choice]:
    """Compute the cost of each choice, and sort by it; of near-equal ones, the smaller is first.

    If a rate is given rather than a budget, the smallest is first, and of equally small ones the
    one of lower cost.
    """
    costed = [replace(each, cost=situation.cost(each)) for each in found]
    if situation.fpr is not None:
        return sorted(costed, key=lambda each: (round(each.bits_per_key, 2), each.cost))
    left, order = sorted(costed, key=lambda each: (each.cost, each.bits)), []
    while left:
        near = [each for each in left if each.cost <= left[0].cost * NEAR]
        left = left[len(near) :]
        order += sorted(near, key=lambda each: (round(each.bits_per_key, 2), each.cost))
    return order


def unfit(situation: Situation, *, inserts: bool, deletes: bool, adapts: bool = False) -> str:
    """Return why a filter does not meet the needs, or an empty string if it does."""
    needs = situation.needs
    if "stream" in needs:
        return "an endless stream fills it, and its rate goes to 1"
    if "insert" in needs and not inserts:
        return "keys cannot be added after the build"
    if "delete" in needs and not deletes:
        return "keys cannot be removed"
    if {"adversary", "store"} <= needs and not adapts:
        return "it does not adapt: an adversary can repeat a false positive forever"
    return ""


def secret(situation: Situation) -> str:
    """Return how to protect a filter that does not adapt from an adversary."""
    if "adversary" in situation.needs:
        return " Build it with a secret key=, so that nobody can compute its false positives."
    return ""


def cost_sum(choice: Choice, situation: Situation) -> str:
    """Write the cost of a choice as a sum."""
    absent = (
        f"{format_rate(1 - situation.present)} × ({format_duration(choice.absent_time)} + "
        f"{format_rate(choice.weighted_fpr)} × {format_duration(situation.miss_cost)})"
    )
    if not situation.present:
        return f"{absent} = {format_duration(choice.cost)}"
    present = format_duration(choice.present_time)
    if choice.expected_fnr:
        denied = format_rate(choice.expected_fnr)
        present = f"({present} + {denied} × {format_duration(situation.denial_cost)})"
    share = format_rate(situation.present)
    return f"{share} × {present} + {absent} = {format_duration(choice.cost)}"


def groups(workload: Workload) -> tuple[Floats, Floats]:
    """Group known negatives by frequency: their number, and their fraction of the queries."""
    size = workload.curve.size
    edges = np.concatenate(
        [np.arange(min(size, 4096) + 1), np.geomspace(1, max(size, 1), 2048).astype(np.int64)]
    )
    edges = np.unique(edges[edges <= size])
    return np.diff(edges).astype(float), np.diff(np.asarray(workload.curve.psi(edges), float))


def distinct_known(workload: Workload, queries: float) -> float:
    """Predict how many distinct known negatives are among this number of queries.

    >>> import tamis
    >>> round(distinct_known(tamis.Workload.from_counts(["a", "b"], [1, 1]), 1), 6)
    1.0
    """
    counts, mass = groups(workload)
    with np.errstate(divide="ignore"):
        log_unqueried = np.log1p(-np.clip(mass / np.maximum(counts, 1), 0.0, 1.0))
    return float(counts @ -np.expm1(queries * log_unqueried))
