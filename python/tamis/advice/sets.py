"""Advice for many sets: which kind of filters, cut how, under one budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tamis.advice.situation import Choice, Found, RuledOut, Situation
from tamis.collection import Collection
from tamis.planning.collection.allocation import plan_collection
from tamis.planning.kinds import KINDS

if TYPE_CHECKING:
    from tamis._types import Keys

FPR = 1e-4
"""The rate of the full filters."""

_PROBE = 64

_KINDS = {
    "auto": "each set has the kind that suits its size",
    "ribbon": "cut by whole columns",
    "segmented": "cut by segments",
    "truncated": "cut at any bit",
}


def overhead(sets: Mapping[str, Keys]) -> int:
    """Tell what a collection of so many sets takes beside the bits of its filters, in bits.

    It is the same for each set but for its name, so it is read off a collection of a few.
    """
    few = dict.fromkeys(list(sets)[:_PROBE], range(1000))
    probe = Collection.build(few)
    beside = probe.size_in_bytes - probe.size_in_bits // 8
    return 8 * math.ceil(beside * len(sets) / max(len(few), 1))


def collections(
    situation: Situation, counts: npt.NDArray[np.int64], utility: Any, beside: int
) -> Iterator[Found]:
    """Collections of each kind; ``beside`` is what names and sizes take of the budget, in bits."""
    if situation.needs:
        wanted = ", ".join(sorted(situation.needs))
        yield RuledOut("Collection", f"its sets are static, and this is needed: {wanted}")
        return
    spare = situation.budget - beside
    if spare <= 0:
        yield RuledOut("Collection", f"names and sizes alone take {beside // 8:,} bytes")
        return
    for kind, how in _KINDS.items():
        found = plan_collection(counts, utility, budget=spare, kind=kind, fpr=FPR)  # type: ignore[arg-type]
        option = KINDS["ribbon" if kind in ("auto", "ribbon") else "bloom"].layer
        assert option is not None
        yield Choice(
            f"Collection, {kind}",
            "collection",
            "Collection",
            {"kind": kind, "fpr": FPR, "budget": situation.budget // 8, "utility": utility},
            expected_fpr=found.expected_fpr,
            fpr_bound=float(found.rates.max(initial=0.0)),
            bits=found.bits + beside,
            keys=situation.keys,
            absent_time=situation.check(option, present=False),
            present_time=situation.check(option, present=True),
            reason=f"Filters of {len(counts):,} sets, the most asked ones longest: {how}.",
        )
