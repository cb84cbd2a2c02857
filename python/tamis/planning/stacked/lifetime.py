"""Known negatives of an adaptive stack after some queries, and its best three layers.

After n queries for absent keys, each negative of frequency f was queried with probability
1 − (1 − f)ⁿ, so the stack knows

    E[ψ]    = Σ f·(1 − (1 − f)ⁿ)        of the queries, and
    E[|N_f|] = ℓ·n + Σ (1 − (1 − f)ⁿ)    negatives,

where ℓ is the fraction of queries outside the known distribution. During the first N_o queries of
its lifetime only the first layer answers, then all three: a larger N_o means better layers, but
later (Deeds, Hentschel, Idreos 2021, section 6).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis.planning.kinds import KINDS, fingerprint_layer
from tamis.planning.stacked.frequencies import Frequencies, Steps
from tamis.planning.stacked.goal import Goal, Stack
from tamis.planning.stacked.predictions import Array

POINTS = 128
"""Points of the distribution that a filter stores."""

_COARSE, _FINE = 48, 16  # points of the search over N_o, and of its refinement
_POINTS, _BETWEEN, _ZOOMS = 48, 17, 4  # the same for each of two rates
_TABLE = np.geomspace(2.0**-40, 1.0, 4096)
_MAX_OF_NEGATIVES = 12


class Seen(NamedTuple):
    """Knowledge after some queries: ψ, and the number of negatives."""

    psi: float
    negatives: float


def shape(curve: Frequencies) -> Steps:
    """Return a curve of at most `POINTS` points, never above the given one.

    The first ranks are kept, and others on a logarithmic scale.

    >>> from tamis.planning.stacked.frequencies import Zipf
    >>> curve = Zipf(1.0, 10**8, 5 * 10**7)
    >>> short = shape(curve)
    >>> len(short.ranks), bool(abs(short.psi(10**5) / curve.psi(10**5) - 1) < 0.001)
    (128, True)
    """
    if isinstance(curve, Steps) and len(curve.ranks) <= POINTS:
        return curve
    head = min(POINTS // 4, curve.size)
    tail = np.geomspace(max(head, 1), max(curve.size, 1), POINTS - max(head, 1))
    ranks = np.unique(np.concatenate(([0.0], np.arange(head), np.rint(tail))))
    ranks = ranks[ranks <= curve.size]
    return Steps(ranks, np.asarray(curve.psi(ranks), float))


def seen(curve: Frequencies, queries: float) -> Seen:
    """Predict the known negatives after this number of queries for absent keys.

    >>> from tamis.planning.stacked.frequencies import Zipf
    >>> known = seen(Zipf(1.0, 1000, 500), 100)
    >>> round(known.psi, 3), round(known.negatives, 1)
    (0.498, 63.0)
    """
    steps = shape(curve)
    ranks, mass = np.diff(steps.ranks), np.diff(steps.mass)
    each = np.clip(mass / ranks, 0.0, 1.0)
    with np.errstate(divide="ignore"):  # a value of frequency 1 is queried at once
        met = -np.expm1(queries * np.log1p(-each))
    unseen = max(0.0, 1 - float(steps.mass[-1]))
    return Seen(float((mass * met).sum()), unseen * queries + float((ranks * met).sum()))


def queries_for(curve: Frequencies, negatives: float) -> int:
    """Predict about how many queries it takes to meet this many negatives, at most 2⁶².

    >>> from tamis.planning.stacked.frequencies import Zipf
    >>> n = queries_for(Zipf(1.0, 1000, 500), 63)
    >>> 98 <= n <= 102
    True
    """
    low, high = 0.0, 62.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if seen(curve, 2**middle).negatives < negatives else (low, middle)
        )
    return math.ceil(2**high)


def fitted(counts: npt.ArrayLike, share: float) -> Steps:
    """Fit the curve of all negatives to how often each of a sample of them was queried.

    The sample is a ``share`` of the negatives that does not depend on their frequency, so each
    represents 1/share of them. The fraction of queries for unseen values is estimated from those
    that were queried once.

    >>> curve = fitted([8, 2, 1, 1], 0.5)
    >>> curve.size, round(curve.psi(2), 3), round(curve.psi(8), 3)
    (8, 0.556, 0.833)
    """
    found = np.sort(np.asarray(counts, float))[::-1]
    total = float(found.sum())
    unseen = np.count_nonzero(found == 1) / total if total else 1.0
    steps = Steps.of(found, total=1 - unseen)
    return Steps(np.rint(steps.ranks / share), steps.mass)


def mean_rate(first: Any, stacked: Any, observations: float, lifetime: float) -> Any:
    """Return the mean rate over a lifetime; at first, the first layer answers alone.

    >>> round(mean_rate(0.02, 0.004, 250, 1000), 4)
    0.008
    """
    return (observations * first + (lifetime - observations) * stacked) / lifetime


def three_layers(
    goal: Goal, kind: str, curve: Frequencies, lifetime: int
) -> tuple[int, Stack] | None:
    """Find N_o and three layers with the lowest mean rate, or the fewest bits for a rate."""
    search = _rates if KINDS[kind].continuous else _lengths

    def attempt(observations: int) -> Stack | None:
        known = seen(curve, observations)
        if known.negatives < 1:
            return None
        return search(goal, kind, known, observations, lifetime)

    tried: dict[int, Stack | None] = {}
    points = np.geomspace(1, max(lifetime - 1, 1), _COARSE)
    for _ in range(2):
        for n in np.unique(np.rint(points).astype(np.int64)).tolist():
            if n not in tried:
                tried[n] = attempt(n)
        found = {n: stack for n, stack in tried.items() if stack is not None}
        if not found:
            return None
        best = min(found, key=lambda n: goal.score(found[n]))
        near = sorted(tried)
        at = near.index(best)
        points = np.geomspace(near[max(at - 1, 0)], near[min(at + 1, len(near) - 1)], _FINE)
    found = {n: stack for n, stack in tried.items() if stack is not None}
    best = min(found, key=lambda n: goal.score(found[n]))
    return best, found[best]


def _rates(goal: Goal, kind: str, known: Seen, observations: int, lifetime: int) -> Stack | None:
    """Search over the rates of the first two layers; the third gets the remaining bits."""
    # The first layer takes nearly all bits, so the search is over the fraction that it leaves.
    leaves = np.geomspace(2.0**-12, 0.9, _POINTS)
    second = np.geomspace(2.0**-12, 0.95, _POINTS)
    best: Stack | None = None
    bits_per_item = KINDS[kind].bits_per_item
    for _ in range(_ZOOMS):
        first = (
            goal.fpr / leaves
            if goal.minimizes_bits
            else _rate(kind, goal.budget / goal.keys * (1 - leaves))
        )
        one, two = np.minimum(first, 0.9)[:, None], second[None, :]
        used = goal.keys * bits_per_item(one) + known.negatives * one * bits_per_item(two)
        if goal.minimizes_bits:
            three = _allowed_third(goal.fpr, one, two, known, observations, lifetime)
        else:
            left = (goal.budget - used) / (goal.keys * two)
            three = np.where(left > 0, _rate(kind, left), 0.0)
        bits = used + goal.keys * two * np.interp(three, _TABLE, _table_bits(kind))
        cost = mean_rate(one, _stacked(one, two, three, known.psi), observations, lifetime)
        scores = np.where(three > 0, goal.objective(bits, cost), math.inf)
        i, j = divmod(int(scores.argmin()), scores.shape[1])
        if math.isinf(scores[i, j]):
            return best
        rates = (float(one[i, 0]), float(second[j]), float(three[i, j]))
        stack = _found(kind, known, rates, (), float(bits[i, j]), float(cost[i, j]))
        best = stack if best is None or goal.score(stack) < goal.score(best) else best
        leaves, second = _between(leaves, i), _between(second, j)
    return best


@cache
def _table_bits(kind: str) -> Array:
    """Return the bits per item of a layer of each rate in `_TABLE`."""
    return np.asarray(KINDS[kind].bits_per_item(_TABLE))


def _rate(kind: str, bits: Array) -> Array:
    """Return the rate of a layer with these bits per item."""
    return np.interp(bits, _table_bits(kind)[::-1], _TABLE[::-1])


def _between(points: Array, at: int) -> Array:
    """Return points between the neighbours of a point."""
    return np.geomspace(points[max(at - 1, 0)], points[min(at + 1, len(points) - 1)], _BETWEEN)


def _lengths(goal: Goal, kind: str, known: Seen, observations: int, lifetime: int) -> Stack | None:
    """Search over fingerprint lengths; the third is the longest, or shortest, that fits."""
    lengths = KINDS[kind].lengths
    assert lengths is not None
    best: Stack | None = None
    for one in lengths:
        bits, first = fingerprint_layer(kind, goal.keys, one)
        if bits > (best.bits if best and goal.minimizes_bits else goal.budget):
            break
        items = math.ceil(known.negatives * first)
        for two in lengths[:_MAX_OF_NEGATIVES]:
            more, second = fingerprint_layer(kind, items, two)
            keys = math.ceil(goal.keys * second)
            max_bits = goal.budget - bits - more
            max_rate = float(
                _allowed_third(goal.fpr, first, second, known, observations, lifetime)
                if goal.minimizes_bits
                else 1.0
            )
            three = _last(kind, keys, lengths, max_bits, max_rate, goal.minimizes_bits)
            if three is None:
                continue
            rest, third = fingerprint_layer(kind, keys, three)
            stacked = _stacked(first, second, third, known.psi)
            cost = mean_rate(first, stacked, observations, lifetime)
            stack = _found(
                kind, known, (first, second, third), (one, two, three), bits + more + rest, cost
            )
            if best is None or goal.score(stack) < goal.score(best):
                best = stack
    return best


def _last(
    kind: str, keys: int, lengths: range, max_bits: float, max_rate: float, smallest: bool
) -> int | None:
    """Return the shortest fingerprints with at most this rate, or the longest that fit."""
    if smallest:
        at = bisect_left(
            lengths, -max_rate, key=lambda each: -fingerprint_layer(kind, keys, each).rate
        )
        return lengths[at] if at < len(lengths) else None
    at = bisect_right(lengths, max_bits, key=lambda each: fingerprint_layer(kind, keys, each).bits)
    return lengths[at - 1] if at else None


def _allowed_third(
    fpr: float, first: Any, second: Any, known: Seen, observations: int, lifetime: int
) -> Any:
    """Return the rate of the third layer for a mean rate of ``fpr``; 0 if none is low enough."""
    later = lifetime - observations
    passed = (1 - known.psi) * first * (1 - second)
    left = lifetime * fpr - observations * first - later * passed
    reached = later * first * (known.psi + (1 - known.psi) * second)
    # Where no query reaches the third layer, as if all are observations, any rate will do.
    any_rate = np.where(left >= 0, 1.0, 0.0)
    return np.clip(np.divide(left, reached, out=any_rate, where=reached > 0), 0.0, 1.0)


def _stacked(first: Any, second: Any, third: Any, psi: float) -> Any:
    """Return EFPR of three layers; `predictions.expected_rate` is for any number."""
    return first * (psi * third + (1 - psi) * (1 - second + second * third))


def _found(
    kind: str,
    known: Seen,
    rates: tuple[float, ...],
    lengths: tuple[int, ...],
    bits: float,
    cost: float,
) -> Stack:
    return Stack(kind, math.ceil(known.negatives), known.psi, rates, lengths, False, bits, cost)
