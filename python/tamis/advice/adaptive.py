"""Advice on adaptive filters, which fix the false positives that a store reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis._format import format_rate
from tamis.advice.situation import Choice, Found, RuledOut, Situation, unfit
from tamis.advice.stacked import stack_times
from tamis.advice.turnover import Stays, stays
from tamis.planning import adaptive_cuckoo, quotient, telescoping
from tamis.planning.adaptive_stacked import ADAPTIVE_LAYERS, PlanRequest, plan_adaptive
from tamis.planning.kinds import KINDS, fingerprint_layer
from tamis.planning.stacked.frequencies import Zipf

if TYPE_CHECKING:
    from tamis.workload import Workload

QUERIES_PER_KEY = 10
"""Default number of queries for absent keys to plan for, per key. What adaptive filters save
depends on it."""

_HASHES_BITS = 128
"""Bits of a hash that an adaptive cuckoo filter keeps for each slot."""


def adaptive(situation: Situation) -> Iterator[Found]:
    """Yield the filters that fix the false positives that a store reports."""
    why = ""
    if "store" not in situation.needs:
        why = "no store reports its false positives (needs: 'store')"
    why = why or unfit(situation, inserts=True, deletes=True, adapts=True)
    if why:
        yield from (RuledOut(kind.filter, why) for kind in KINDS.values() if kind.adapts)
        return
    for predict in _PREDICTIONS.values():
        yield predict(situation)
    for kind in KINDS.values():
        if kind.adapts and kind.name not in _PREDICTIONS:
            yield RuledOut(kind.filter, "its rate while it adapts is not predicted")


def _telescoping(situation: Situation) -> Found:
    """Find the longest remainders that spare bits for the selectors, or the shortest for a rate."""
    n = situation.keys
    count = quotient.quotients(n)
    directory = telescoping.selector_bits(count, "growing")
    stay = stays(situation)
    # Elements that joined have moved less far: the code is shorter than for as many that stay.
    met = float(stay.distinct.max())
    for length in range(32, 0, -1) if situation.fpr is None else range(1, 33):
        slots, rate = fingerprint_layer("quotient", n, length)
        if not rate or math.isinf(_moves(situation, stay, rate)):
            continue
        each = max(met, 1) / max(n, 1)
        code = telescoping.selector_entropy(each, rate, load=1.0)
        code += telescoping.rounding_bits(each, rate)
        bits = math.ceil(slots + directory + n * code)
        if bits <= situation.budget:
            found = _adapting(situation, stay, "telescoping", rate, bits, {"fpr": rate})
            if found.expected_fpr <= (situation.fpr or 1.0):
                return found
    if situation.fpr is not None:
        return RuledOut("Telescoping", f"its rate is above {format_rate(situation.fpr)}")
    return RuledOut(
        "Telescoping", f"its selectors do not fit into {situation.bits_per_key:.3g} bits per key"
    )


def _adaptive_cuckoo(situation: Situation) -> Found:
    n = situation.keys
    try:
        size = adaptive_cuckoo.size(n, **situation.sizing)
    except ValueError as error:
        return RuledOut("AdaptiveCuckoo", str(error))
    held, stay = math.ceil(_HASHES_BITS * size.slots), stays(situation)
    if situation.fpr is not None:
        rate, bits = size.rate(n), held + size.bits
        return _adapting(situation, stay, "adaptive_cuckoo", rate, bits, dict(situation.sizing))
    if held + size.bits > situation.budget:
        return RuledOut(
            "AdaptiveCuckoo",
            f"it keeps the hashes of its keys in memory, {held / max(n, 1):.0f} bits per key",
        )
    spare = (situation.budget - held) / max(n, 1)
    size = adaptive_cuckoo.size(n, bits_per_key=spare)
    rate = size.rate(n)
    bits = held + size.bits
    return _adapting(situation, stay, "adaptive_cuckoo", rate, bits, {"bits_per_key": spare})


def _adaptive_stacked(situation: Situation) -> Found:
    w = situation.workload
    if w is None or not len(w):
        return RuledOut(
            "AdaptiveStacked", "no workload is given, so the skew of the queries is unknown"
        )
    if "adversary" in situation.needs:
        return RuledOut("AdaptiveStacked", "it learns only frequent false positives, not every one")
    if situation.turnover:
        return RuledOut(
            "AdaptiveStacked",
            "with other keys it learns other negatives, and its layers outgrow the budget",
        )
    arguments: dict[str, Any] = {
        "sizing": "lifetime",
        "lifetime": max(round(situation.queries), 1),
        "layer": _deleting_layer() if "delete" in situation.needs else "auto",
        **situation.sizing,
    }
    try:
        found = plan_adaptive(PlanRequest(situation.keys, **arguments), w)
    except ValueError as error:
        return RuledOut("AdaptiveStacked", str(error))
    if len(found.stack.layers) == 1:
        return RuledOut(
            "AdaptiveStacked", "more than one layer does not pay off within its lifetime"
        )
    absent, present = stack_times(situation, found.stack)
    return Choice(
        "AdaptiveStacked",
        "adaptive",
        "AdaptiveStacked",
        {"workload": w, **arguments},
        expected_fpr=found.mean_fpr,
        fpr_bound=found.stack.fpr_bound,
        bits=found.stack.bits,
        keys=situation.keys,
        absent_time=absent,
        present_time=present,
        reason=(
            f"Learns the frequent negatives from the first {found.observations:,} queries for "
            "absent keys; needs to know only how skewed they are."
        ),
    )


def _deleting_layer() -> str:
    return next(kind.name for kind in ADAPTIVE_LAYERS if kind.deletes)


def _extending(situation: Situation) -> Found:
    return RuledOut("Extending", "it takes more memory than Telescoping for the same fixes")


_PREDICTIONS: dict[str, Callable[[Situation], Found]] = {
    "telescoping": _telescoping,
    "extending": _extending,
    "adaptive_cuckoo": _adaptive_cuckoo,
    "adaptive_stacked": _adaptive_stacked,
}
"""The prediction for each kind that adapts."""


def _adapting(
    situation: Situation, stay: Stays, kind: str, rate: float, bits: int, arguments: dict[str, Any]
) -> Choice:
    name, option = KINDS[kind].filter, KINDS[kind].options[0]
    queries = situation.queries
    wasted = _moves(situation, stay, rate)
    expected = min(rate, wasted / queries) if queries else rate
    return Choice(
        name,
        "adaptive",
        name,
        arguments,
        expected_fpr=expected,
        fpr_bound=rate,
        bits=bits,
        keys=situation.keys,
        absent_time=situation.check(option, present=False),
        present_time=situation.check(option, present=True),
        reason=(
            f"Does not repeat a false positive: of {queries:,.0f} queries for absent keys, "
            f"{situation.distinct:,.0f} are for distinct keys."
        ),
    )


def _moves(situation: Situation, stay: Stays, rate: float) -> float:
    """Predict the number of false positives: how often elements move away from an absent key.

    Each of c distinct absent keys per stored one matches an element with probability ε, whatever
    its state. An element stays with probability e^(−cε), so its moves have a geometric
    distribution with mean e^(cε) − 1.
    """
    met = stay.distinct * rate / max(situation.keys, 1)
    if met.max() >= 700:
        return math.inf
    return situation.keys * float(stay.elements @ np.expm1(met))


def horizon(workload: Workload | None, keys: int) -> tuple[float, bool]:
    """Return the number of queries for absent keys to plan for, and whether a log has it."""
    if (
        workload is not None
        and workload.counts is not None
        and not isinstance(workload.curve, Zipf)
    ):
        total = float(np.sum(workload.counts))
        if total >= 1 and np.issubdtype(workload.counts.dtype, np.integer):
            return total, True
    return float(QUERIES_PER_KEY * keys), False
