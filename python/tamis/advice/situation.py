"""Which filter: the choices that fit a situation, what each is predicted to cost, and the order.

A question for a key that is there costs the time of the filter; the read that follows is wanted. A
question for an absent one costs that time, and a wasted read if the filter says yes:

    cost = π·(t_present + ν·d) + (1 − π)·(t_absent + α·c)

with π the share of questions for keys that are there, α the rate, c the cost of a wasted read, and,
for filters that forget, ν the share of keys denied and d what a denial costs.

References: Deeds, Hentschel, Idreos 2021 (stacks, theorem 3); Lee, McCauley, Singh, Stein 2021
(adaptive filters); Liu, Zheng, Shen, Chen 2020, figure 12 (when learned and stable filters suit).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis.planning.costs import check_seconds, format_duration
from tamis.planning.kinds import Option
from tamis.planning.plan import Plan

if TYPE_CHECKING:
    from tamis._types import Keys
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
"""What a filter may have to bear, or may use."""


class Gaps(NamedTuple):
    """After how many records a value comes again, and the share of all records that do so."""

    records: Floats
    shares: Floats

    def within(self, most: float) -> float:
        """The share of the records whose value came among so many before."""
        return float(self.shares[self.records <= most].sum())

    def distinct(self, records: float) -> float:
        """Expect how many values so many records in a row have.

        A record that comes again after g is not the first of its value with probability 1 − g/n.
        """
        again = self.shares @ np.clip(1 - self.records / records, 0.0, None)
        return records * (1 - float(again))


@dataclass(frozen=True)
class Situation:
    """What is known: keys, bits, questions and costs.

    ``questions`` (H) is how many questions for absent keys are reckoned with, ``scale`` by how much
    slower than the table of checks this machine is, ``gaps`` after how many records of a stream a
    value comes again.
    """

    keys: int
    budget: int
    workload: Workload | None
    needs: frozenset[str]
    present: float
    questions: float
    miss_cost: float
    denial_cost: float
    scale: float = 1.0
    gaps: Gaps | None = None

    @property
    def bits_per_key(self) -> float:
        """The budget for each key."""
        return self.budget / max(self.keys, 1)

    @property
    def distinct(self) -> float:
        """How many different absent keys so many questions are expected to ask for.

        Σ 1 − (1 − f)^H over the known ones; every question for an unseen one is taken to be new.
        """
        if self.workload is None:
            return self.questions
        seen = asked_for(self.workload, self.questions)
        return min(self.questions, seen + self.workload.unseen * self.questions)

    def check(self, option: Option, *, present: bool) -> float:
        """Tell the time of one query, in seconds."""
        return check_seconds(option.check, self.keys, present, self.scale)

    def cost(self, choice: Choice) -> float:
        """Predict what a question costs on average, in seconds."""
        there = choice.present_time + choice.expected_fnr * self.denial_cost
        absent = choice.absent_time + choice.expected_fpr * self.miss_cost
        return self.present * there + (1 - self.present) * absent


@dataclass(frozen=True)
class Choice:
    """One way to do it: a filter to be built, and what it is predicted to do.

    ``expected_fpr`` is the rate under the workload and ``fpr_bound`` that under any other;
    ``expected_fnr`` the share of keys denied, of filters that forget; ``bits`` the size, after
    adapting where a filter grows by it. Times and ``cost``, of a question on average, are seconds.
    ``plan`` is there for stacked filters. The ``measured_`` fields are filled by `Advice.measure`.
    """

    name: str
    family: str
    filter: str
    arguments: dict[str, Any] = field(repr=False)
    expected_fpr: float
    fpr_bound: float
    bits: int
    keys: int
    absent_time: float
    present_time: float
    reason: str
    expected_fnr: float = 0.0
    cost: float = math.nan
    plan: Plan | None = field(default=None, repr=False)
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

    def build(self, keys: Keys, **arguments: Any) -> Any:
        """Build it of these keys; further arguments are those of the class's own ``build``.

        >>> import tamis
        >>> f = tamis.advise(1000, bits_per_key=10, needs={"delete"}).best.build(range(1000))
        >>> type(f).__name__, bool(f.contains(range(1000)).all())
        ('Quotient', True)
        """
        if self.plan is not None:
            return self.plan.build(keys, **arguments)
        import tamis

        return getattr(tamis, self.filter).build(keys, **{**self.arguments, **arguments})


@dataclass(frozen=True)
class RuledOut:
    """A family that does not fit, and why."""

    name: str
    reason: str


Found = Choice | RuledOut


def ranked(situation: Situation, found: list[Choice]) -> list[Choice]:
    """Reckon the cost of each, and order by it; of equal ones the smaller first."""
    costed = [replace(each, cost=situation.cost(each)) for each in found]
    return sorted(costed, key=lambda each: (each.cost, each.bits))


def unfit(situation: Situation, *, inserts: bool, deletes: bool, adapts: bool = False) -> str:
    """Say which need a filter of these abilities does not meet; nothing if it meets all."""
    needs = situation.needs
    if "stream" in needs:
        return "a stream without end fills it: its rate goes to 1"
    if "insert" in needs and not inserts:
        return "it takes no insertions after it was built"
    if "delete" in needs and not deletes:
        return "it cannot delete"
    if {"adversary", "store"} <= needs and not adapts:
        return "a false positive stays one: whoever repeats it is wrong at a rate of 1"
    return ""


def secret(situation: Situation) -> str:
    """Tell how a filter that does not adapt bears an adversary."""
    if "adversary" in situation.needs:
        return " Build it with key=, so that nobody can compute its false positives."
    return ""


def line(choice: Choice, situation: Situation) -> str:
    """Write out how the cost of a choice comes about."""
    absent = (
        f"{1 - situation.present:.3g} × ({format_duration(choice.absent_time)} + "
        f"{choice.expected_fpr:.3g} × {format_duration(situation.miss_cost)})"
    )
    if not situation.present:
        return f"{absent} = {format_duration(choice.cost)}"
    there = format_duration(choice.present_time)
    if choice.expected_fnr:
        there = f"({there} + {choice.expected_fnr:.3g} × {format_duration(situation.denial_cost)})"
    return f"{situation.present:.3g} × {there} + {absent} = {format_duration(choice.cost)}"


def groups(workload: Workload) -> tuple[Floats, Floats]:
    """Known negatives in groups of like frequency: how many, and their share of the questions."""
    size = workload.curve.size
    edges = np.concatenate(
        [np.arange(min(size, 4096) + 1), np.geomspace(1, max(size, 1), 2048).astype(np.int64)]
    )
    edges = np.unique(edges[edges <= size])
    return np.diff(edges).astype(float), np.diff(np.asarray(workload.curve.psi(edges), float))


def asked_for(workload: Workload, questions: float) -> float:
    """Expect how many of the known negatives so many questions ask for.

    >>> import tamis
    >>> round(asked_for(tamis.Workload.from_counts(["a", "b"], [1, 1]), 1), 6)
    1.0
    """
    counts, mass = groups(workload)
    with np.errstate(divide="ignore"):
        stays = np.log1p(-np.clip(mass / np.maximum(counts, 1), 0.0, 1.0))
    return float(counts @ -np.expm1(questions * stays))
