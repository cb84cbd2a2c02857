"""Filters that fix the mistakes that a store tells them of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis.advice.situation import Choice, Found, RuledOut, Situation, unfit
from tamis.advice.stacked import stack_times
from tamis.planning import adaptive_cuckoo, quotient, telescoping
from tamis.planning.adaptive_stacked import Wish, plan_adaptive
from tamis.planning.kinds import KINDS, fingerprint_layer
from tamis.planning.stacked.frequencies import Zipf

if TYPE_CHECKING:
    from tamis.workload import Workload

QUESTIONS_PER_KEY = 10
"""Questions for absent keys that are reckoned with where no log says how many: what adaptive
filters spare depends on it."""

_HASHES_BITS = 128
"""Bits of a hash that an adaptive cuckoo filter holds beside each slot."""


def adaptive(situation: Situation) -> Iterator[Found]:
    """Filters that fix the mistakes that a store tells them of."""
    why = ""
    if "store" not in situation.needs:
        why = "nothing tells it of its mistakes without a store (needs: 'store')"
    why = why or unfit(situation, inserts=True, deletes=True, adapts=True)
    if why:
        yield from (RuledOut(kind.filter, why) for kind in KINDS.values() if kind.adapts)
        return
    yield _telescoping(situation)
    yield RuledOut("Extending", "it fixes what Telescoping does, and takes more memory for it")
    yield _adaptive_cuckoo(situation)
    yield _adaptive_stacked(situation)


def _telescoping(situation: Situation) -> Found:
    """Find the longest remainders that leave room for the selectors of all that will move."""
    n = situation.keys
    count = quotient.quotients(n)
    beside = telescoping.selector_bits(count, "growing")
    for length in range(32, 0, -1):
        slots, rate = fingerprint_layer("quotient", n, length)
        if not rate or math.isinf(_moves(situation, rate)):
            continue
        code = telescoping.selector_entropy(max(situation.distinct, 1) / max(n, 1), rate, load=1.0)
        bits = math.ceil(slots + beside + n * code)
        if bits <= situation.budget:
            return _adapting(situation, "telescoping", rate, bits, {"fpr": rate})
    return RuledOut(
        "Telescoping", f"{situation.bits_per_key:.3g} bits per key do not hold what it would learn"
    )


def _adaptive_cuckoo(situation: Situation) -> Found:
    n = situation.keys
    try:
        size = adaptive_cuckoo.size(n, bits_per_key=situation.bits_per_key)
    except ValueError as error:
        return RuledOut("AdaptiveCuckoo", str(error))
    held = math.ceil(_HASHES_BITS * size.slots)
    if held + size.bits > situation.budget:
        return RuledOut(
            "AdaptiveCuckoo",
            f"it holds the hashes of its keys in memory, {held / max(n, 1):.0f} bits per key",
        )
    spare = (situation.budget - held) / max(n, 1)
    size = adaptive_cuckoo.size(n, bits_per_key=spare)
    rate = size.rate(n)
    bits = held + size.bits
    return _adapting(situation, "adaptive_cuckoo", rate, bits, {"bits_per_key": spare})


def _adaptive_stacked(situation: Situation) -> Found:
    w = situation.workload
    if w is None or not len(w):
        return RuledOut("AdaptiveStacked", "no workload tells how skewed the questions are")
    if "adversary" in situation.needs:
        return RuledOut("AdaptiveStacked", "it learns what is asked often, not every mistake")
    arguments: dict[str, Any] = {
        "sizing": "lifetime",
        "lifetime": max(round(situation.questions), 1),
        "layer": "quotient" if "delete" in situation.needs else "auto",
        "bits_per_key": situation.bits_per_key,
    }
    try:
        found = plan_adaptive(Wish(situation.keys, **arguments), w)
    except ValueError as error:
        return RuledOut("AdaptiveStacked", str(error))
    if len(found.stack.layers) == 1:
        return RuledOut("AdaptiveStacked", "more than one layer does not pay within its lifetime")
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
            f"Collects the negatives of the first {found.observations:,} questions for absent keys "
            "by itself; only how skewed they are need be known."
        ),
    )


def _adapting(
    situation: Situation, kind: str, rate: float, bits: int, arguments: dict[str, Any]
) -> Choice:
    name, option = KINDS[kind].filter, KINDS[kind].options[0]
    asked = situation.questions
    wasted = _moves(situation, rate)
    expected = min(rate, wasted / asked) if asked else rate
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
            f"Pays for a mistake once: of {asked:,.0f} questions for absent keys "
            f"{situation.distinct:,.0f} are for different ones."
        ),
    )


def _moves(situation: Situation, rate: float) -> float:
    """Predict how often an element moves away from an absent key: the false positives in all.

    An element is met by each of c distinct absent keys per stored one with probability ε, wherever
    it is; it stays with probability e^(−cε), so its moves are geometric, e^(cε) − 1 on average.
    """
    met = situation.distinct * rate / max(situation.keys, 1)
    return situation.keys * math.expm1(met) if met < 700 else math.inf


def horizon(workload: Workload | None, keys: int) -> tuple[float, bool]:
    """Tell how many questions for absent keys are reckoned with, and whether a log says so."""
    if (
        workload is not None
        and workload.counts is not None
        and not isinstance(workload.curve, Zipf)
    ):
        total = float(np.sum(workload.counts))
        if total >= 1 and np.issubdtype(workload.counts.dtype, np.integer):
            return total, True
    return float(QUESTIONS_PER_KEY * keys), False
