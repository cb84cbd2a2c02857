"""Advice for many sets under one budget: which kind of filters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis.advice.situation import Choice, Found, RuledOut, Situation
from tamis.collection import Collection
from tamis.planning.collection.allocation import PrefixKind, plan_collection
from tamis.planning.kinds import KINDS, Kind

if TYPE_CHECKING:
    from tamis._types import Keys

FPR = 1e-4
"""The false-positive rate of the full filters."""

_PROBE = 64
"""Sets of the collection whose overhead is measured."""


class _Method(NamedTuple):
    """How filters are cut to a budget, and the kind of filter that is cut."""

    description: str
    filter: Kind


_METHODS: dict[PrefixKind | Literal["auto"], _Method] = {
    "auto": _Method("each set has the kind that suits its size", KINDS["ribbon"]),
    "ribbon": _Method("cut by whole columns", KINDS["ribbon"]),
    "segmented": _Method("cut by segments", KINDS["bloom"]),
    "truncated": _Method("cut at any bit", KINDS["bloom"]),
}
"""The values of ``kind`` in `tamis.plan_collection`."""


def overhead(sets: Mapping[str, Keys]) -> int:
    """Return the bits that a collection of these sets takes in addition to its filters.

    They are the same for each set, except for its name, so a collection of a few is measured.
    """
    few = dict.fromkeys(list(sets)[:_PROBE], range(1000))
    probe = Collection.build(few)
    extra = probe.size_in_bytes - probe.size_in_bits // 8
    return 8 * math.ceil(extra * len(sets) / max(len(few), 1))


def collections(
    situation: Situation, counts: npt.NDArray[np.int64], utility: Any, overhead_bits: int
) -> Iterator[Found]:
    """Yield collections of each kind; names and sizes take ``overhead_bits`` of the budget."""
    if situation.needs:
        needs = ", ".join(sorted(situation.needs))
        yield RuledOut("Collection", f"its sets are static and do not support: {needs}")
        return
    spare = situation.budget - overhead_bits
    if spare <= 0:
        yield RuledOut("Collection", f"names and sizes alone take {overhead_bits // 8:,} bytes")
        return
    for kind, method in _METHODS.items():
        found = plan_collection(counts, utility, budget=spare, kind=kind, fpr=FPR)
        option = method.filter.layer
        assert option is not None
        yield Choice(
            f"Collection, {kind}",
            "collection",
            "Collection",
            {"kind": kind, "fpr": FPR, "budget": situation.budget // 8, "utility": utility},
            expected_fpr=found.expected_fpr,
            fpr_bound=float(found.rates.max(initial=0.0)),
            bits=found.bits + overhead_bits,
            keys=situation.keys,
            absent_time=situation.check(option, present=False),
            present_time=situation.check(option, present=True),
            reason=(
                f"Filters of {len(counts):,} sets, the longest for the most queried: "
                f"{method.description}."
            ),
        )
