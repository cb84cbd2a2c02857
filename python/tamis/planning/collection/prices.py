"""The optimal allocation of a budget to many filters, and its dual, by one price per bit.

The curves of all filters are convex (`curves`), so the optimum keeps the bits of each filter whose
gain in weighted rate is at or above one price. As the price falls, more bits are kept. The problem
reduces to a search for the price that spends the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis.planning.collection.curves import Curve, Floats, Ints, Mixed, Ribbon, Segmented


def optimal(curve: Curve, utility: Floats, budget: int) -> Ints:
    """Return the bits to keep of each filter that minimize the weighted rate within a budget.

    Exact for Bloom filters, where single bits count. Whole columns of ribbons are taken by gain per
    bit, then the ones that still fit; the remainder goes where a part of a column helps most.
    """
    return optimal_price(curve, utility, budget)[0]


def optimal_price(
    curve: Curve, utility: Floats, budget: int, near: float | None = None
) -> tuple[Ints, float]:
    """Return the bits of `optimal`, and the logarithm of the price of a bit.

    If the price of a similar problem is known, the search starts ``near`` it.
    """
    few, many, price = search_price(curve, utility, budget, near)
    kept = few.copy()
    _fill(curve, utility, kept, many, budget)
    ribbons = [(own, part) for own, part in _parts(curve) if isinstance(part, Ribbon)]
    if not ribbons:
        return kept, price
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
    return kept, price


def search_price(
    curve: Curve, utility: Floats, budget: int, near: float | None = None
) -> tuple[Ints, Ints, float]:
    """Return the bits at the lowest price within a budget, the bits just below it, and its log."""
    return _bracket(curve, utility, _spent, budget, near)


def fewest_bits(curve: Curve, utility: Floats, target: float) -> Ints:
    """Return the fewest bits with a weighted rate of at most the target; all if none reach it."""
    allowed = target * float(utility.sum())
    if float(utility @ curve.rate(curve.bits)) > allowed:
        return curve.bits

    def spared(part: Curve, kept: Ints, weights: Floats) -> float:
        return float(weights.sum() - weights @ part.rate(kept))

    few, many, _ = _bracket(curve, utility, spared, float(utility.sum()) - allowed)
    # Filters that differ gain equally per bit: take as many of them as needed.
    gain = utility * (curve.rate(few) - curve.rate(many))
    needed = float(utility @ curve.rate(few)) - allowed
    order = np.flatnonzero(many > few)
    order = order[np.argsort(-gain[order], kind="stable")]
    count = int(np.searchsorted(np.cumsum(gain[order]), needed)) + 1 if needed > 0 else 0
    kept = few.copy()
    kept[order[:count]] = many[order[:count]]
    return kept


Measure: TypeAlias = Callable[[Curve, Ints, Floats], float]
"""A sum over filters that rises as the price falls, from curve, bits kept and utilities."""


def _spent(_: Curve, kept: Ints, __: Floats) -> float:
    return float(kept.sum())


_SAMPLE = 1 << 15
"""Filters in a sample that gives the price to a few percent."""

_SLACK = 0.01
"""Initial distance from the price of the sample, in log price."""


def _bracket(
    curve: Curve, utility: Floats, measure: Measure, limit: float, near: float | None = None
) -> tuple[Ints, Ints, float]:
    """Return the bits at the lowest price with a measure of at most ``limit``, and just below it.

    The two differ only in filters whose next bits gain equally. The price follows, as a logarithm.
    """
    used = np.flatnonzero(utility > 0)
    few, many = np.zeros(len(utility), np.int64), np.zeros(len(utility), np.int64)
    if not len(used):
        return few, many, 0.0
    part = curve if len(used) == len(utility) else curve.take(used)
    few[used], many[used], price = _search(part, utility[used], measure, limit, near=near)
    return few, many, price


class _Priced(NamedTuple):
    """The bits worth a price, and their measure."""

    log_price: float
    kept: Ints
    value: float


def _search(
    curve: Curve,
    utility: Floats,
    measure: Measure,
    limit: float,
    tolerance: float = 0.0,
    near: float | None = None,
) -> tuple[Ints, Ints, float]:
    """Search for the lowest price at which the measure is at most ``limit``, up to a tolerance.

    Returns the bits at that price, the bits just below it, and its logarithm. The measure is
    interpolated between two prices, and the interval is halved where that gains little.
    """
    cheap, costly = _enclose(curve, utility, measure, limit, near)
    low, many, above = cheap
    high, few, below = costly
    # Filters that keep as many bits at both prices are settled, and left out from then on.
    unsettled: npt.NDArray[np.intp] | slice = slice(None)
    part, weights, log_utility = curve, utility, np.log(utility)
    settled, halve = 0.0, False
    while len(weights) and high - low > tolerance:
        width = high - low
        share = (above - limit) / (above - below) if above > below else 0.5
        # A little inside the interval, so that either end may move.
        middle = low + width * (0.5 if halve else min(max(share, 0.02), 0.98))
        if not low < middle < high:
            break
        kept = part.worth(middle, log_utility)
        value = settled + measure(part, kept, weights)
        if value <= limit:
            high, below = middle, value
            few[unsettled] = kept
        else:
            low, above = middle, value
            many[unsettled] = kept
        halve = not halve and high - low > width / 2
        still = np.flatnonzero(few[unsettled] < many[unsettled])
        if len(still) < 0.7 * len(weights):
            unsettled = still if isinstance(unsettled, slice) else unsettled[still]
            part, weights, log_utility = part.take(still), weights[still], log_utility[still]
            settled = below - measure(part, few[unsettled], weights)
    return few, many, high


def _enclose(
    curve: Curve, utility: Floats, measure: Measure, limit: float, near: float | None = None
) -> tuple[_Priced, _Priced]:
    """Find a price with a measure above ``limit``, and a higher one with at most that.

    The search starts near the price of a similar problem, or of a sample. If no measure is above
    ``limit``, both are the lowest price.
    """
    log_utility = np.log(utility)
    # No bit gains more than its utility, and gains below e⁻⁷⁰⁰ of it are ignored.
    lowest, highest = float(log_utility.min()) - 700, float(log_utility.max()) + 1

    def at(log_price: float) -> _Priced:
        kept = curve.worth(log_price, log_utility)
        return _Priced(log_price, kept, measure(curve, kept, utility))

    low, high, slack = lowest, highest, _SLACK
    if near is not None:
        slack = _SLACK / 100
        low, high = max(lowest, near - slack), min(highest, near + slack)
    elif len(utility) > 2 * _SAMPLE:
        which = np.random.default_rng(0).integers(0, len(utility), _SAMPLE)
        share = limit * _SAMPLE / len(utility)
        _, _, guess = _search(curve.take(which), utility[which], measure, share, _SLACK / 4)
        low, high = max(lowest, guess - _SLACK), min(highest, guess + _SLACK)
    cheap, step = at(low), slack
    while cheap.value <= limit and cheap.log_price > lowest:
        high, step = cheap.log_price, 4 * step
        cheap = at(max(lowest, high - step))
    if cheap.value <= limit:
        return cheap, cheap
    costly, step = at(high), slack
    while costly.value > limit and costly.log_price < highest:
        cheap, step = costly, 4 * step
        costly = at(min(highest, cheap.log_price + step))
    return cheap, costly


def _fill(curve: Curve, utility: Floats, kept: Ints, many: Ints, budget: int) -> None:
    """Spend the rest of the budget on filters whose next bits gain equally, by utility."""
    order = np.flatnonzero(many > kept)
    order = order[np.argsort(-utility[order], kind="stable")]
    by_columns = np.zeros(len(kept), np.bool_)
    for own, part in _parts(curve):
        by_columns[own] = isinstance(part, Ribbon)
    left = budget - int(kept.sum())
    wanted = (many - kept)[order]
    ends = np.cumsum(wanted)
    given = np.clip(left - (ends - wanted), 0, wanted)
    # Columns are taken whole; `_more_columns` handles the rest.
    given[(given < wanted) & by_columns[order]] = 0
    kept[order] += given


def _parts(curve: Curve) -> tuple[tuple[npt.NDArray[np.intp] | slice, Curve], ...]:
    return curve.parts if isinstance(curve, Mixed) else ((slice(None), curve),)


def _more_columns(curve: Ribbon, utility: Floats, kept: Ints, left: int) -> Ints:
    """Add columns that fit into the rest of the budget, the best first; then a part of one."""
    kept = kept.copy()
    length = np.where(kept == 0, curve.codes, 0) + curve.slots
    # So far all columns are whole, and one more halves the rate.
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


def _part_of_a_column(curve: Ribbon, utility: Floats, kept: Ints, gains: Floats, left: int) -> None:
    """Add the rest of the budget, less than a column, to the filter that gains most.

    ``gains`` has the gain of a full column for each filter. Only rows inside the part are checked,
    so it must be at least one row long.
    """
    needed = np.where(kept == 0, curve.codes, 0) + curve.width
    fitting = np.flatnonzero((needed <= left) & (gains > 0))
    if not len(fitting):
        return

    def gain(which: npt.NDArray[np.intp]) -> Floats:
        some, now = curve.take(which), kept[which]
        return utility[which] * (some.rate(now) - some.rate(now + left))

    first = fitting[[np.argmax(gains[fitting])]]
    candidates = fitting[gains[fitting] >= gain(first)]
    kept[candidates[np.argmax(gain(candidates))]] += left


def best_kinds(
    segmented: Segmented,
    ribbon: Ribbon,
    sizes: npt.NDArray[np.intp],
    utility: Floats,
    budget: int | None,
    target: float | None,
) -> npt.NDArray[np.uint8]:
    """Choose 0 (segmented) or 1 (ribbon) for each filter, given the index of its size.

    Ribbons of most sizes are better at any price. The others take the kind with the lower cost,
    rate plus price of bits, at the price that an allocation of the better kind alone would have;
    the prices of the two kinds hardly differ.
    """
    which = np.zeros(len(utility), np.uint8)
    used = np.flatnonzero(utility > 0)
    if not len(used):
        return which
    which[dominates(ribbon, segmented)[sizes]] = 1
    undecided = used[which[used] == 0]
    if not len(undecided):
        return which
    price = _common_price((segmented, ribbon), sizes, utility, budget, target)
    weights, costs = utility[undecided], []
    for curve in (segmented, ribbon):
        filters = curve.take(sizes[undecided])
        kept = filters.worth(price, np.log(weights))
        costs.append(weights * filters.rate(kept) + math.exp(price) * kept)
    which[undecided] = np.argmin(costs, axis=0)
    return which


def dominates(ribbon: Ribbon, other: Curve) -> npt.NDArray[np.bool_]:
    """Whether each ribbon has the lower cost, rate plus price of bits, at every price.

    Both costs are concave in the price, and the cost of the ribbon is linear between the prices at
    which it gains a column. So it suffices to compare them at these prices, and at price 0.
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
        best &= costs[0] <= costs[1] * (1 + 1e-12)  # up to rounding
    return best


def _common_price(
    curves: Sequence[Curve],
    sizes: npt.NDArray[np.intp],
    utility: Floats,
    budget: int | None,
    target: float | None,
) -> float:
    """Return the log price of a bit if all filters had the better kind, from a sample."""
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
            kept = fewest_bits(curve, weights, target or 1.0)
            spent = float(kept.sum())
            found.append((spent, math.log(float(weights.sum()) / max(spent, 1.0))))
    return min(found)[1]
