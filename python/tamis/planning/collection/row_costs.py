"""Filters one by one (ribbons, or segmented Bloom filters of few keys), or sliced: which to build.

A lookup asks every set. By rows, one word of memory answers for 64 sets, but a rate takes 1.44
bits per key and factor of two, where a ribbon takes 1.02. So a lookup costs

    sets · (time of a probe + rate · cost of a false positive),

with the rate that each can have within the budget, and the lower cost wins: ribbons for few or
large sets, or where false positives are expensive; rows for many small ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tamis._format import format_duration, format_rate
from tamis.planning.collection.allocation import plan_collection, weighted_rate
from tamis.planning.collection.curves import Floats, Ints, Segmented
from tamis.planning.collection.sliced import plan_segments, size

PROBE, SLICED_PROBE, SLICED_LOOKUP = 40e-9, 0.5e-9, 1.5e-6
"""Seconds of a lookup per set, one by one and by rows, and of any lookup by rows; from
``benches/collection.py``."""

OVERHEAD, SLICED_OVERHEAD = 14, 10
"""Bytes per set in addition to its bits, about."""

TAIL_READ = 5e-6
"""Seconds to check the rest of a filter in a file that the system has in memory."""

FEWEST = 64
"""Below this number of sets, a word is not full."""


class Chosen(NamedTuple):
    """A kind for `tamis.Collection.build`, and a sentence about the choice."""

    kind: str
    reason: str


def choose_kind(
    keys: Ints, utility: Floats, budget: int, *, fpr: float = 1e-4, miss_cost: float = 1e-3
) -> Chosen:
    """Choose between kinds "auto" (one by one) and "sliced" for a budget in bytes.

    ``miss_cost`` is the cost of a false positive, in seconds.

    >>> keys, equal = np.full(50_000, 40), np.ones(50_000)
    >>> choose_kind(keys, equal, 6_000_000).kind, choose_kind(keys, equal, 2_000_000).kind
    ('sliced', 'auto')
    >>> choose_kind(keys[:20], equal[:20], 2400).reason
    'ribbons, since 20 sets are fewer than the 64 that a word of rows answers for'
    """
    sets = int(np.count_nonzero(keys))
    if sets < FEWEST:
        few = f"{sets} sets are fewer than the {FEWEST} that a word of rows answers for"
        return Chosen("auto", f"ribbons, since {few}")
    bits = [max(0, 8 * (budget - each * len(keys))) for each in (OVERHEAD, SLICED_OVERHEAD)]
    one_by_one = plan_collection(keys, utility, budget=bits[0], fpr=fpr).expected_fpr
    by_rows = _sliced_rate(keys, utility, bits[1], fpr)
    costs = [
        sets * (PROBE + one_by_one * miss_cost),
        SLICED_LOOKUP + sets * (SLICED_PROBE + by_rows * miss_cost),
    ]
    both = (
        f"a lookup in {sets:,} sets takes about {format_duration(sets * PROBE)} at a rate of "
        f"{format_rate(one_by_one)} one by one, and "
        f"{format_duration(SLICED_LOOKUP + sets * SLICED_PROBE)} at a rate of "
        f"{format_rate(by_rows)} by rows"
    )
    cost = f"in total if a false positive costs {format_duration(miss_cost)}"
    if costs[1] < costs[0]:
        return Chosen("sliced", f"filters by rows: {both}, which costs less {cost}")
    return Chosen("auto", f"ribbons: {both}, which costs more {cost}")


def _sliced_rate(keys: Ints, utility: Floats, bits: int, fpr: float) -> float:
    numbers, which = np.unique(keys, return_inverse=True)
    sizes = np.array([size(int(number), fpr) for number in numbers], np.int64)[which]
    sizes *= (keys > 0)[:, None]
    curve = Segmented(sizes[:, 0] * sizes[:, 1], sizes[:, 1], keys)
    segments = plan_segments(curve, utility, bits)
    return weighted_rate(utility, curve.rate(segments * sizes[:, 0]))
