"""Which filters to build for a collection: separate ones, or bit-sliced ones.

Separate filters are ribbons, or segmented Bloom filters of few keys. A lookup probes every set. In
bit-sliced filters, one word of memory answers for 64 sets, but halving the rate takes 1.44 bits per
key, and 1.02 in a ribbon. A lookup costs

    sets · (time of a probe + rate · cost of a false positive)

with the rate that each kind has within the budget. The lower cost wins: ribbons for few or large
sets, or where false positives are expensive; bit-sliced filters for many small sets.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from tamis._checks import check_number
from tamis._format import format_duration, format_rate
from tamis.planning.collection.allocation import best_curves, weighted_rate
from tamis.planning.collection.curves import Floats, Ints, Segmented
from tamis.planning.collection.prices import optimal
from tamis.planning.collection.sliced import MIN_SETS, filter_size, plan_segments

PROBE, SLICED_PROBE, SLICED_LOOKUP = 40e-9, 0.5e-9, 1.5e-6
"""Seconds of a lookup per set, separate and bit-sliced, and of any bit-sliced lookup; from
``benches/collection.py``."""

OVERHEAD, SLICED_OVERHEAD = 14, 10
"""Bytes per set in addition to its bits, estimated."""

TAIL_READ = 5e-6
"""Seconds to check the rest of a filter in a file that the system has in memory."""


class KindChoice(NamedTuple):
    """A kind for `tamis.Collection.build`, and a sentence about the choice."""

    kind: Literal["auto", "sliced"]
    reason: str


def choose_kind(
    keys: Ints, utility: Floats, budget: int, *, fpr: float = 1e-4, miss_cost: float = 1e-3
) -> KindChoice:
    """Choose between kinds "auto" (separate) and "sliced" for a budget in bytes.

    ``miss_cost`` is the cost of a false positive, in seconds.

    >>> keys, equal = np.full(50_000, 40), np.ones(50_000)
    >>> choose_kind(keys, equal, 6_000_000).kind, choose_kind(keys, equal, 2_000_000).kind
    ('sliced', 'auto')
    >>> choose_kind(keys[:20], equal[:20], 2400).reason
    'ribbons, since 20 sets are fewer than the 64 that a word of rows answers for'
    """
    fpr = check_number("fpr", fpr, "a rate from 2**-32 to below 1", least=2.0**-32, below=1)
    sets = int(np.count_nonzero(keys))
    if sets < MIN_SETS:
        few = f"{sets} sets are fewer than the {MIN_SETS} that a word of rows answers for"
        return KindChoice("auto", f"ribbons, since {few}")
    bits = [max(0, 8 * (budget - each * len(keys))) for each in (OVERHEAD, SLICED_OVERHEAD)]
    _, curve = best_curves(keys, utility, fpr, bits[0])
    separate = weighted_rate(utility, curve.rate(optimal(curve, utility, bits[0])))
    by_rows = _sliced_rate(keys, utility, bits[1], fpr)
    costs = [
        sets * (PROBE + separate * miss_cost),
        SLICED_LOOKUP + sets * (SLICED_PROBE + by_rows * miss_cost),
    ]
    both = (
        f"a lookup in {sets:,} sets takes about {format_duration(sets * PROBE)} at a rate of "
        f"{format_rate(separate)} one by one, and "
        f"{format_duration(SLICED_LOOKUP + sets * SLICED_PROBE)} at a rate of "
        f"{format_rate(by_rows)} by rows"
    )
    cost = f"in total if a false positive costs {format_duration(miss_cost)}"
    if costs[1] < costs[0]:
        return KindChoice("sliced", f"filters by rows: {both}, which costs less {cost}")
    return KindChoice("auto", f"ribbons: {both}, which costs more {cost}")


def _sliced_rate(keys: Ints, utility: Floats, bits: int, fpr: float) -> float:
    numbers, which = np.unique(keys, return_inverse=True)
    sizes = np.array([filter_size(int(number), fpr) for number in numbers], np.int64)[which]
    sizes *= (keys > 0)[:, None]
    curve = Segmented(sizes[:, 0] * sizes[:, 1], sizes[:, 1], keys)
    segments = plan_segments(curve, utility, bits)
    return weighted_rate(utility, curve.rate(segments * sizes[:, 0]))
