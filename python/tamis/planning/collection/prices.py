"""One price for a bit: the allocation of a budget to many filters, and its dual.

The curves of all filters are convex (`curves`), so the optimum keeps of each filter the bits
whose gain in weighted rate is at or above one price. As the price falls, what is kept
grows; the search for the price that spends the budget is all there is to solve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tamis.planning.collection.curves import Curve, Floats, Ints, Mixed, Ribbon, Segmented


def optimal(curve: Curve, utility: Floats, budget: int) -> Ints:
    """Find the whole bits to keep of each filter with the least weighted rate in the budget.

    Exact where single bits count (Bloom filters). Columns of ribbons are taken whole by gain per
    bit, then those that still fit; what is left over goes where a part of a column helps.
    """
    few, many = _bracket(curve, utility, _spent, budget)
    kept = few.copy()
    _fill(curve, utility, kept, many, budget)
    ribbons = [(own, part) for own, part in _parts(curve) if isinstance(part, Ribbon)]
    if not ribbons:
        return kept
    for own, part in ribbons:
        left = budget - int(kept.sum())
        kept[own] = _more_columns(part, utility[own], kept[own], left)
    divisible = np.ones(len(kept), np.bool_)
    for own, _ in ribbons:
        divisible[own] = False
    loose = np.flatnonzero(divisible)
    left = budget - int(kept.sum())
    if len(loose) and left > 0:
        kept[loose] = optimal(curve.take(loose), utility[loose], left + int(kept[loose].sum()))
    return kept


def least(curve: Curve, utility: Floats, target: float) -> Ints:
    """Find the least bits whose weighted rate is at most the target; all if none reach it."""
    most = target * float(utility.sum())
    if float(utility @ curve.rate(curve.bits)) > most:
        return curve.bits

    def spared(part: Curve, kept: Ints, weights: Floats) -> float:
        return float(weights.sum() - weights @ part.rate(kept))

    few, many = _bracket(curve, utility, spared, float(utility.sum()) - most)
    # Filters between the two gain alike per bit: as many of them as are needed.
    gain = utility * (curve.rate(few) - curve.rate(many))
    needed = float(utility @ curve.rate(few)) - most
    order = np.flatnonzero(many > few)
    order = order[np.argsort(-gain[order], kind="stable")]
    count = int(np.searchsorted(np.cumsum(gain[order]), needed)) + 1 if needed > 0 else 0
    kept = few.copy()
    kept[order[:count]] = many[order[:count]]
    return kept


Measure: TypeAlias = Callable[[Curve, Ints, Floats], float]
"""What rises as the price falls, summed over filters: from curve, bits kept and utilities."""


def _spent(_: Curve, kept: Ints, __: Floats) -> float:
    return float(kept.sum())


_SAMPLE = 1 << 15
"""Filters that tell the price to a few percent, before all are asked for the rest of it."""

_SLACK = 0.01
"""How far from the price of the sample that of all is looked for first."""


def _bracket(curve: Curve, utility: Floats, measure: Measure, most: float) -> tuple[Ints, Ints]:
    """Bits at the lowest price at which the measure is at most ``most``, and just below that price.

    The two differ only in filters whose next bits gain alike.
    """
    asked = np.flatnonzero(utility > 0)
    few, many = np.zeros(len(utility), np.int64), np.zeros(len(utility), np.int64)
    if not len(asked):
        return few, many
    part = curve if len(asked) == len(utility) else curve.take(asked)
    weights = utility[asked]
    few[asked], many[asked], _ = _search(part, weights, measure, most)
    return few, many


def _search(
    curve: Curve, utility: Floats, measure: Measure, most: float, tolerance: float = 0.0
) -> tuple[Ints, Ints, float]:
    """Search for the price between two that enclose it, and tell it too, up to a tolerance.

    Between them the measure is interpolated, a little inwards of both so that either may move, and
    halved where that gains little. Filters that keep as many bits at both ends are settled and not
    asked again.
    """
    logs = np.log(utility)
    # No bit gains more than its utility; a gain below e⁻⁷⁰⁰ of it is none.
    highest, lowest = float(logs.max()) + 1, float(logs.min()) - 700
    guess = None
    if len(logs) > 2 * _SAMPLE:
        which = np.random.default_rng(0).integers(0, len(logs), _SAMPLE)
        share = most * _SAMPLE / len(logs)
        guess = _search(curve.take(which), utility[which], measure, share, _SLACK / 4)[2]
    low, high, step = lowest, highest, _SLACK
    if guess is not None:
        low, high = max(lowest, guess - step), min(highest, guess + step)
    while True:
        many = curve.worth(low, logs)
        above = measure(curve, many, utility)
        if above > most or low <= lowest:
            break
        low, high, step = max(lowest, low - 4 * step), low, 4 * step
    if above <= most:
        return many, many.copy(), low
    step = _SLACK
    while True:
        few = curve.worth(high, logs)
        below = measure(curve, few, utility)
        if below <= most or high >= highest:
            break
        low, high, many, above, step = high, min(highest, high + 4 * step), few, below, 4 * step
    open_: npt.NDArray[np.intp] | slice = slice(None)
    part, weights, settled, halve = curve, utility, 0.0, False
    while len(weights) and high - low > tolerance:
        share = (above - most) / (above - below) if above > below else 0.5
        middle = low + (high - low) * (0.5 if halve else min(max(share, 0.02), 0.98))
        if not low < middle < high:
            break
        width = high - low
        found = part.worth(middle, logs)
        value = settled + measure(part, found, weights)
        if value <= most:
            high, few[open_], below = middle, found, value
        else:
            low, many[open_], above = middle, found, value
        halve = not halve and high - low > width / 2
        still = np.flatnonzero(few[open_] < many[open_])
        if len(still) < 0.7 * len(weights):
            open_ = still if isinstance(open_, slice) else open_[still]
            part, logs, weights = part.take(still), logs[still], weights[still]
            settled = below - measure(part, few[open_], weights)
    return few, many, high


def _fill(curve: Curve, utility: Floats, kept: Ints, many: Ints, budget: int) -> None:
    """Hand out what is left among filters whose next bits gain alike, the most asked first."""
    order = np.flatnonzero(many > kept)
    order = order[np.argsort(-utility[order], kind="stable")]
    room = np.zeros(len(kept), np.bool_)
    for own, part in _parts(curve):
        room[own] = isinstance(part, Ribbon)
    left = budget - int(kept.sum())
    wanted = (many - kept)[order]
    ends = np.cumsum(wanted)
    given = np.clip(left - (ends - wanted), 0, wanted)
    # A column is taken whole or left to `_more_columns`.
    given[(given < wanted) & room[order]] = 0
    kept[order] += given


def _parts(curve: Curve) -> tuple[tuple[npt.NDArray[np.intp] | slice, Curve], ...]:
    return curve.parts if isinstance(curve, Mixed) else ((slice(None), curve),)


def _more_columns(curve: Ribbon, utility: Floats, kept: Ints, left: int) -> Ints:
    """Add columns that fit into what is left, the best first; then the best part of one."""
    kept = kept.copy()
    length = np.where(kept == 0, curve.codes, 0) + curve.slots
    # Whole columns are kept so far, and one more halves the rate.
    gain = np.where(kept < curve.bits, utility * curve.rate(kept) / 2, 0.0)
    while True:
        fits = np.flatnonzero((length <= left) & (gain > 0))
        if not len(fits):
            break
        fits = fits[np.argsort(-gain[fits] / length[fits], kind="stable")]
        taken = fits[: max(1, int(np.searchsorted(np.cumsum(length[fits]), left, side="right")))]
        kept[taken] += length[taken]
        left -= int(length[taken].sum())
        length[taken] = curve.slots[taken]
        gain[taken] = np.where(kept[taken] < curve.bits[taken], gain[taken] / 2, 0.0)
    if left > 0 and len(kept):
        _part_of_a_column(curve, utility, kept, gain, left)
    return kept


def _part_of_a_column(curve: Ribbon, utility: Floats, kept: Ints, whole: Floats, left: int) -> None:
    """Add what is left to the filter that gains most by it: less than by a ``whole`` column.

    Rows that lie inside the part tell something, so it has to be as long as one.
    """
    needed = np.where(kept == 0, curve.codes, 0) + curve.width
    room = np.flatnonzero((needed <= left) & (whole > 0))
    if not len(room):
        return

    def gain(which: npt.NDArray[np.intp]) -> Floats:
        some, now = curve.take(which), kept[which]
        return utility[which] * (some.rate(now) - some.rate(now + left))

    first = room[[np.argmax(whole[room])]]
    candidates = room[whole[room] >= gain(first)]
    kept[candidates[np.argmax(gain(candidates))]] += left


def best_kinds(
    segmented: Segmented,
    ribbon: Ribbon,
    sizes: npt.NDArray[np.intp],
    utility: Floats,
    budget: int | None,
    target: float | None,
) -> npt.NDArray[np.uint8]:
    """Choose 0, segmented, or 1, ribbon, for each filter, given by its place among the sizes.

    Ribbons of most sizes are better at any price. For others the kind is taken that has the least
    rate and price of bits under the price that the better of the two kinds would have, were all
    filters of it: between kinds it hardly differs.
    """
    which = np.zeros(len(utility), np.uint8)
    asked = np.flatnonzero(utility > 0)
    if not len(asked):
        return which
    which[dominates(ribbon, segmented)[sizes]] = 1
    unsure = asked[which[asked] == 0]
    if not len(unsure):
        return which
    price, weights = (
        _common_price((segmented, ribbon), sizes, utility, budget, target),
        utility[unsure],
    )
    costs = []
    for curve in (segmented, ribbon):
        some = curve.take(sizes[unsure])
        kept = some.worth(price, np.log(weights))
        costs.append(weights * some.rate(kept) + math.exp(price) * kept)
    which[unsure] = np.argmin(costs, axis=0)
    return which


def dominates(ribbon: Ribbon, other: Curve) -> npt.NDArray[np.bool_]:
    """Whether each ribbon has the lower sum of rate and price of bits at every price.

    As functions of the price both are concave, and the ribbon's is a line between prices at which
    it takes one more column, so there it has to be the lower; and at none, where all bits are kept.
    """
    best = (ribbon.keys > 0) & (ribbon.rate(ribbon.bits) <= other.rate(other.bits))
    steps = range(int(ribbon.columns.max(initial=1)) - 1)
    prices = [ribbon.log_first, *(ribbon.log_second - j * math.log(2) for j in steps)]
    for log_price in prices:
        log_price = np.where(best, log_price, 0.0)
        costs = [
            curve.rate(kept) + np.exp(log_price) * kept
            for curve in (ribbon, other)
            for kept in [curve.worth(0.0, -log_price)]
        ]
        best &= costs[0] <= costs[1] * (1 + 1e-12)  # but for rounding
    return best


def _common_price(
    curves: Sequence[Curve],
    sizes: npt.NDArray[np.intp],
    utility: Floats,
    budget: int | None,
    target: float | None,
) -> float:
    """Find the log of the price of a bit if all filters were of the better kind, from a sample."""
    sample = np.flatnonzero(utility > 0)
    if budget is not None and len(sample) > 2 * _SAMPLE:
        budget = budget * _SAMPLE // len(sample)
    if len(sample) > 2 * _SAMPLE:
        sample = sample[np.random.default_rng(0).integers(0, len(sample), _SAMPLE)]
    weights, found = utility[sample], []
    for curve in (each.take(sizes[sample]) for each in curves):
        if budget is not None:
            kept, _, price = _search(curve, weights, _spent, budget, _SLACK)
            found.append((float(weights @ curve.rate(kept)), price))
        else:
            kept = least(curve, weights, target or 1.0)
            spent = float(kept.sum())
            found.append((spent, math.log(float(weights.sum()) / max(spent, 1.0))))
    return min(found)[1]
