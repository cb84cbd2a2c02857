"""Advice on stacked filters: alternating layers of each kind, and an exact last layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from tamis._format import format_duration, format_rate
from tamis.advice.situation import (
    Choice,
    Found,
    RuledOut,
    Situation,
    ranked,
    secret,
    unfit,
)
from tamis.advice.turnover import recognized_workload
from tamis.planning.kinds import KINDS, LAYERS, REFERENCE, Kind, LayerKind
from tamis.planning.plan import Plan
from tamis.planning.planner import Last, plan

if TYPE_CHECKING:
    from tamis.workload import Workload


def stacked(situation: Situation, plain_cost: float) -> Iterator[Found]:
    """Yield stacks of each kind of layer, and the best one with an exact last layer.

    ``plain_cost`` is the cost of a query with the best plain filter; kinds whose layers alone cost
    more are skipped.
    """
    w = recognized_workload(situation)
    if w is None or not len(w) or w.unseen >= 1:
        why = "no workload is given" if w is None else "no query is repeated in the sample"
        yield RuledOut("Stacked", f"{why}, so there are no frequent negatives to store")
        return
    for kind in LAYERS:
        name = f"Stacked {kind.name}"
        if reason := unfit(situation, inserts=kind.inserts, deletes=kind.deletes):
            yield RuledOut(name, reason)
        else:
            yield _stack(situation, w, name, kind, "alternating", plain_cost)
    if reason := unfit(situation, inserts=False, deletes=False):
        yield RuledOut("Stacked, exact last layer", reason)
        return
    exact = [
        _stack(situation, w, "Stacked, exact last layer", kind, "exact", plain_cost)
        for kind in reversed(LAYERS)
        if not kind.deletes  # an exact layer is static, so a smaller static kind is better
    ]
    fitting = ranked(situation, [each for each in exact if isinstance(each, Choice)])
    yield fitting[0] if fitting else exact[0]


def _stack(
    situation: Situation, w: Workload, name: str, kind: Kind, last: Last, plain_cost: float
) -> Found:
    timed = kind.layer
    assert timed is not None
    # A key in the set passes at least two layers, an absent key at least one.
    fastest = situation.present * 2 * situation.check(timed, present=True)
    fastest += (1 - situation.present) * situation.check(timed, present=False)
    if fastest >= plain_cost:
        return RuledOut(
            name,
            f"its layers alone take {format_duration(fastest)}; a plain filter costs less in total",
        )
    try:
        found = plan(
            situation.keys,
            w,
            layer=cast(LayerKind, kind.name),
            last=last,
            rates="equal",  # varied rates save a few percent, but take a second to optimize
            **_goal(situation),
        )
    except ValueError as error:
        return RuledOut(name, str(error))
    if len(found.layers) == 1:
        return RuledOut(
            name,
            f"more than one layer does not pay off: the best stack is a plain {kind.name} filter",
        )
    absent, present = stack_times(situation, found)
    if last == "exact":
        why = f"none of the {found.negatives:,} most frequent negatives is ever a false positive"
    else:
        rate = format_rate(found.frequent_fpr)
        why = f"the {found.negatives:,} most frequent negatives have a rate of {rate}"
    return Choice(
        name,
        "exact" if last == "exact" else "stacked",
        "Stacked",
        {},
        expected_fpr=found.expected_fpr,
        fpr_bound=1.0 if "adversary" in situation.needs else found.fpr_bound,
        bits=found.bits,
        keys=situation.keys,
        absent_time=absent,
        present_time=present,
        reason=f"{_known(situation, found)}: {why}." + secret(situation),
        plan=found,
    )


def _known(situation: Situation, found: Plan) -> str:
    known = f"{format_rate(found.psi)} of the queries are known"
    return f"{known}, on average while keys are replaced" if situation.turnover else known


def _goal(situation: Situation) -> dict[str, Any]:
    """Return the goal of the plan: the smallest size for a rate, or the lowest cost for a budget.

    ``check_cost`` is the time of the reference filter, to which the times of layers are relative.
    """
    if situation.fpr is not None:
        return situation.sizing
    return situation.sizing | {
        "miss_cost": max(situation.miss_cost, 1e-12),
        "check_cost": situation.check(REFERENCE, present=False),
    }


def stack_times(situation: Situation, found: Plan) -> tuple[float, float]:
    """Predict the time of a query for an absent and for a present key.

    A present key passes more layers than an absent one: ``checks`` of them on average.
    """
    first = KINDS[found.layers[0].kind].layer
    assert first is not None
    absent = found.psi * found.checks.frequent + (1 - found.psi) * found.checks.infrequent
    return (
        float(absent) * situation.check(first, present=False),
        float(found.checks.keys) * situation.check(first, present=True),
    )
