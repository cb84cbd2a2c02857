"""`tamis.advise`: which filter, how big, and what it will gain."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from tamis import _native
from tamis.collection import parse_budget
from tamis.planning import bloom
from tamis.planning.advice.adaptive import adaptive, horizon
from tamis.planning.advice.plain import plain
from tamis.planning.advice.situation import NEEDS, Choice, Found, RuledOut, Situation, line, ranked
from tamis.planning.advice.stacked import stacked
from tamis.planning.advice.streams import streams
from tamis.planning.advice.theory import figure_12, theorem_3
from tamis.planning.arguments import MOST_KEYS, check_rate_or_budget, whole
from tamis.planning.costs import check_seconds, duration, told

if TYPE_CHECKING:
    from tamis._types import Keys
    from tamis.workload import Workload

__all__ = ["Advice", "Choice", "RuledOut", "advise"]


@dataclass(frozen=True)
class Advice:
    """Ranked choices: ``choices`` from the cheapest question on, ``best`` the first of them.

    Each `Choice` has a ``name``, ``family``, ``expected_fpr``, ``fpr_bound``, ``expected_fnr``,
    ``bits_per_key``, ``cost`` of a question in seconds, one sentence of ``reason``, and `build`.
    ``ruled_out`` has a ``name`` and ``reason`` each; ``unjudged`` are sentences on what could not
    be judged and which sample would tell. `explain` derives the numbers, `measure` holds them
    against a sample, `to_json` is for programs, `str` a table.

    >>> import tamis
    >>> w = tamis.Workload.zipf(exponent=1.0, universe=10**8, sample=5 * 10**7)
    >>> a = tamis.advise(1_000_000, w, bits_per_key=10, miss_cost="1ms")
    >>> a.best.family, a.best.expected_fpr < 1e-4
    ('stacked', True)
    """

    situation: Situation
    choices: tuple[Choice, ...]
    ruled_out: tuple[RuledOut, ...]
    unjudged: tuple[str, ...]

    @property
    def best(self) -> Choice:
        """The choice whose questions are predicted to cost least."""
        if not self.choices:
            reasons = "; ".join(f"{each.name}: {each.reason}" for each in self.ruled_out)
            raise ValueError(f"no filter fits: {reasons}")
        return self.choices[0]

    def explain(self) -> str:
        """Derive the numbers: what was given, what the papers say of it, and each cost as a sum."""
        return "\n".join(_explained(self))

    def to_json(self) -> str:
        """Return the advice as JSON text: the situation, choices, what was ruled out and left open.

        >>> import tamis
        >>> json.loads(tamis.advise(1000).to_json())["choices"][0]["family"]
        'plain'
        """
        s = self.situation
        given = {
            "keys": s.keys,
            "budget_bits": s.budget,
            "needs": sorted(s.needs),
            "present": s.present,
            "questions": s.questions,
            "miss_cost": s.miss_cost,
            "denial_cost": s.denial_cost,
        }
        return json.dumps(
            {
                "situation": given,
                "choices": [_plain_fields(each) for each in self.choices],
                "ruled_out": [asdict(each) for each in self.ruled_out],
                "unjudged": list(self.unjudged),
            }
        )

    def __str__(self) -> str:
        return "\n".join(_table(self))


def advise(
    keys: Keys | SupportsIndex,
    workload: Workload | None = None,
    *,
    bits_per_key: float | None = None,
    budget: int | str | None = None,
    miss_cost: float | str = "1ms",
    denial_cost: float | str | None = None,
    check_cost: float | str | None = None,
    present: float | None = None,
    questions: float | None = None,
    needs: Iterable[str] = (),
) -> Advice:
    """Rank all filters that fit a budget by what a question is predicted to cost.

    ``keys`` are the keys, or only how many; for a stream, how many of the latest are to be
    remembered. The budget is ``bits_per_key`` (10 unless given) or ``budget`` in bytes, also as
    "64MB". Durations are seconds or text such as "1ms": ``miss_cost`` is a read in vain,
    ``denial_cost`` a key that is denied (the same unless given), ``check_cost`` one check of a
    standard Bloom filter on your machine (that of the table in `tamis.planning.costs` unless
    given). ``present`` is the share of questions for keys that are there (the workload's unless
    given), ``questions`` how many for absent keys are to come (as many as the workload has seen).

    ``needs`` are of: "insert", "delete", "adversary" (who repeats what was wrong), "store" (one is
    at hand and tells of mistakes), "stream" (without end), "false negatives allowed", "classifier"
    (keys that a model may read).

    >>> import tamis
    >>> a = tamis.advise(100_000, bits_per_key=12, needs={"delete"})
    >>> [each.name for each in a.choices]
    ['Quotient', 'Cuckoo']
    """
    wanted = _needs(needs)
    n = _count(keys)
    bits = _budget(n, bits_per_key, budget)
    miss = duration("miss_cost", miss_cost)
    denial = miss if denial_cost is None else duration("denial_cost", denial_cost)
    scale = 1.0
    if check_cost is not None:
        base = check_seconds("bloom, standard", n, present=False)
        scale = duration("check_cost", check_cost) / base
    asked, told_by_log = horizon(workload, n)
    if questions is not None:
        asked, told_by_log = _positive("questions", questions), True
    there = _present(workload, present, wanted)
    if workload is not None and workload.present != there:
        workload = copy.copy(workload)
        workload.present = there
    situation = Situation(n, bits, workload, wanted, there, asked, miss, denial, scale)
    alike = list(plain(situation))
    costs = (situation.cost(each) for each in alike if isinstance(each, Choice))
    found: list[Found] = [
        *alike,
        *stacked(situation, min(costs, default=math.inf)),
        *adaptive(situation),
        *streams(situation),
    ]
    return Advice(
        situation,
        tuple(ranked(situation, [each for each in found if isinstance(each, Choice)])),
        tuple(each for each in found if isinstance(each, RuledOut)),
        tuple(_unjudged(situation, told_by_log, present)),
    )


def _needs(needs: Iterable[str]) -> frozenset[str]:
    wanted = frozenset([needs] if isinstance(needs, str) else needs)
    for each in sorted(wanted, key=str):
        if each not in NEEDS:
            raise ValueError(f"needs has {each!r}; {', '.join(NEEDS)} are possible")
    return wanted


def _count(keys: Any) -> int:
    if isinstance(keys, int | np.integer):
        return whole("keys", keys, MOST_KEYS)
    return len(_native.Distinct(keys))


def _budget(n: int, bits_per_key: float | None, budget: int | str | None) -> int:
    if bits_per_key is not None and budget is not None:
        raise ValueError("both of bits_per_key and budget given; at most one is wanted")
    if budget is not None:
        return 8 * parse_budget(budget)
    bits_per_key = 10.0 if bits_per_key is None else bits_per_key
    check_rate_or_budget(None, bits_per_key)
    return math.floor(bits_per_key * max(n, 1))


def _positive(name: str, value: float) -> float:
    if not value > 0 or math.isinf(value):
        raise ValueError(f"{name} is {value}; a positive number is wanted")
    return float(value)


def _present(workload: Workload | None, present: float | None, needs: frozenset[str]) -> float:
    if present is not None:
        if not 0 <= present <= 1:
            raise ValueError(f"present is {present}; a share from 0 to 1 is wanted")
        return float(present)
    if workload is None:
        return 0.0
    if "stream" in needs and workload.counts is not None and len(workload.counts):
        # In a stream every value is absent once, and then there.
        return 1 - len(workload.counts) / max(float(workload.counts.sum()), 1.0)
    return workload.present


def _unjudged(situation: Situation, told_by_log: bool, present: float | None) -> Iterable[str]:
    w, needs = situation.workload, situation.needs
    if w is None:
        yield (
            "Which absent keys are asked for is not known: a log of questions, as "
            "Workload.from_queries, would tell what stacked and adaptive filters gain."
        )
    elif w.values is None:
        yield "The workload is a shape without values: to build a stack, give its negatives."
    if present is None and (w is None or w.removed == 0) and "stream" not in needs:
        yield (
            "The share of questions for keys that are there is taken to be 0: present=, or a "
            "workload counted with keys=, would tell."
        )
    if "store" in needs and not told_by_log:
        yield (
            f"How many questions will come is taken to be {situation.questions:,.0f}: questions= "
            "would tell; the more repeat, the more adaptive filters gain."
        )
    if "classifier" not in needs and "stream" not in needs:
        yield (
            "Whether members look unlike what is asked for was not tried: needs={'classifier'}, "
            "with the keys and a workload that has values, would tell what LearnedBloom gains."
        )
    if w is not None and w.values is not None:
        yield (
            "Whether the questions stay as they were in the sample: measure(keys, queries) with "
            "later questions would tell, and Workload.drift by how much."
        )


def _plain_fields(choice: Choice) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: value
        for name, value in vars(choice).items()
        if name not in ("plan", "arguments") and value is not None
    }
    fields["bits_per_key"] = choice.bits_per_key
    fields["plan"] = None if choice.plan is None else json.loads(choice.plan.to_json())
    return fields


def _table(advice: Advice) -> Iterable[str]:
    s = advice.situation
    yield (
        f"{s.keys:,} keys, {s.bits_per_key:.3g} bits per key, {s.present:.1%} of the questions for "
        f"keys that are there, {told(s.miss_cost)} for a read in vain"
    )
    yield ""
    measured = any(each.measured_cost is not None for each in advice.choices)
    heads = ["filter", "bits/key", "rate", "bound", "denied", "cost"]
    heads += ["measured", "denied", "cost"] if measured else []
    forget = any(each.expected_fnr for each in advice.choices)
    rows = []
    for each in advice.choices:
        row = [each.name, f"{each.bits_per_key:.2f}", f"{each.expected_fpr:.3g}"]
        row += [f"{each.fpr_bound:.3g}", f"{each.expected_fnr:.3g}", told(each.cost)]
        if measured:
            row += [
                _number(each.measured_fpr),
                _number(each.measured_fnr),
                "–" if each.measured_cost is None else told(each.measured_cost),
            ]
        rows.append(row)
    shown = [i for i, head in enumerate(heads) if forget or head != "denied"]
    yield from _aligned([heads, *rows], shown)
    if advice.choices:
        yield ""
        yield f"{advice.best.name}: {advice.best.reason}"
    yield from _listed("Ruled out:", (f"{each.name}: {each.reason}" for each in advice.ruled_out))
    yield from _listed("Not judged:", advice.unjudged)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _aligned(rows: list[list[str]], shown: list[int]) -> Iterable[str]:
    widths = [max(len(row[i]) for row in rows) for i in shown]
    for row in rows:
        cells = [row[i] for i in shown]
        first = cells[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        yield "  ".join([first, *rest]).rstrip()


def _listed(head: str, lines: Iterable[str]) -> Iterable[str]:
    lines = list(lines)
    if lines:
        yield ""
        yield head
        yield from (f"- {each}" for each in lines)


def _explained(advice: Advice) -> Iterable[str]:
    s = advice.situation
    yield from _table(advice)
    yield ""
    yield "Kinds that suit (Liu et al. 2020, figure 12):"
    yield from figure_12(s)
    w = s.workload
    if w is not None and len(w) and "stream" not in s.needs:
        size = bloom.size("standard", s.keys, bits_per_key=s.bits_per_key)
        rate = bloom.rate("standard", s.keys, size)
        if rate < 0.5:
            yield ""
            yield (
                f"Where a stack of Bloom layers surely beats one at its rate of {rate:.3g} "
                "(Deeds et al. 2021, theorem 3 and figure 2c):"
            )
            yield from theorem_3(s, rate)
    if "store" in s.needs:
        yield ""
        yield (
            f"Of {s.questions:,.0f} questions for absent keys, {s.distinct:,.0f} are expected to "
            f"be for different ones: {s.distinct / max(s.keys, 1):.3g} per key. A filter that "
            "adapts errs e^(c·rate) − 1 times per key in all (Lee et al. 2021; c is that number)."
        )
    yield ""
    yield "Cost of a question (share present × time + share absent × (time + rate × read)):"
    width = max((len(each.name) for each in advice.choices), default=0)
    for each in advice.choices:
        yield f"  {each.name:<{width}}  {line(each, s)}"
    for each in advice.choices:
        if each.plan is not None and each is advice.choices[0]:
            yield ""
            yield str(each.plan)
