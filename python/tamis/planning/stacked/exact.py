"""One layer over the keys, and a one-bit function over the keys and the negatives that pass it.

Keys map to 1, these negatives to 0, so that no stored negative is ever a false positive and any
other one is with probability α/2. The bits per key are about log2(1/α) + 1 + α·|N_f|/|P|.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tamis.planning.kinds import KINDS, fingerprint_layer
from tamis.planning.ribbon import function_bits
from tamis.planning.stacked import predictions
from tamis.planning.stacked.goal import FLOOR, Goal, Stack
from tamis.planning.stacked.predictions import Array
from tamis.planning.stacked.sweep import Search

_POINTS = 1024
_LARGEST = 0.9
_SINGLY = 64
_CORRECTIONS = 6


def search_for(kind: str) -> Search:
    """Return the search for the best exact stack with a first layer of this kind."""

    def search(goal: Goal, negatives: int, psi: float, cutoff: float = math.inf) -> Stack | None:
        rates, lengths, bits = _first_layers(kind, goal.keys, *_range(kind, goal))
        bits = bits + _functions_bits(goal.keys + rates * negatives)
        if KINDS[kind].fractional:
            found = _fraction(kind, goal, negatives, psi, rates, bits)
            rates, lengths, bits = rates[1:], lengths[1:], bits[1:]
            if found is not None:
                rates, lengths = np.append(rates, found.rate), np.append(lengths, found.length)
                bits = np.append(bits, found.bits)
        expected, checks = predictions.exact_rate(rates, psi), predictions.exact_checks(rates)
        allowed = goal.allowed(expected, rates / 2, psi, checks, bits)
        cost = goal.cost(expected, psi, checks, kind)
        scores = np.where(allowed, goal.objective(bits, cost), math.inf)
        # If all negatives are known, all rates of the layer are equally good: take the lowest.
        i = int(np.lexsort((rates, scores))[0])
        if not scores[i] < cutoff:
            return None
        fractional = KINDS[kind].fractional
        length = (float(lengths[i]) if fractional else int(lengths[i]),) if lengths[i] else ()
        return Stack(
            kind, negatives, psi, (float(rates[i]),), length, True, float(bits[i]), float(cost[i])
        )

    return search


def _functions_bits(items: Array) -> Array:
    """Return the bits of a function for each number of items; if many, by powers of two."""
    if len(items) <= _SINGLY:
        return np.array([function_bits(math.ceil(n)) for n in items.tolist()])
    octave = np.exp2(np.ceil(np.log2(items)))
    sizes = {n: function_bits(int(n)) / n for n in set(octave.tolist())}
    return np.array([sizes[n] for n in octave.tolist()]) * items


def _range(kind: str, goal: Goal) -> tuple[float, float]:
    """Return the lowest and the highest rate to try for a continuous kind."""
    if not KINDS[kind].continuous:
        return 0.0, 0.0
    lowest = goal.fpr / 4 if goal.minimizes_bits else 2.0 ** -(goal.budget / goal.keys)
    return max(lowest, FLOOR), _LARGEST


@lru_cache(maxsize=8)
def _first_layers(
    kind: str, keys: int, lowest: float, highest: float
) -> tuple[Array, Array, Array]:
    """Return the rate, fingerprint length and bits of each candidate for the first layer.

    For kinds with fractional lengths, length 0 comes first, as the lower end of lengths below 1.
    """
    lengths = KINDS[kind].lengths
    if lengths is None:
        rates = np.geomspace(lowest, highest, _POINTS)
        return rates, np.zeros(_POINTS), keys * KINDS[kind].bits_per_item(rates)
    tried = [0, *lengths] if KINDS[kind].fractional else lengths
    layers = [fingerprint_layer(kind, keys, length) for length in tried]
    bits, rates = np.array(layers).T
    return rates, np.array(tried, float), bits


class _Fraction(NamedTuple):
    """A first layer of fractional length, and its bits including the function."""

    length: float
    rate: float
    bits: int


def _fraction(
    kind: str, goal: Goal, negatives: int, psi: float, rates: Array, bits: Array
) -> _Fraction | None:
    """Find the best fractional length of the first layer, given the bits of whole lengths.

    Between two whole lengths (from 0 on), the bits are nearly linear in the length. So the longest
    length within a budget is between the longest whole one that fits and the next; for a rate, the
    best length is whole, or the shortest that reaches the rate.
    """
    fractional = KINDS[kind].fractional
    assert fractional is not None
    if goal.minimizes_bits:
        needed = _highest_rate(goal, psi)
        if not rates[-1] <= needed < 1:
            return None
        return _at(kind, goal, negatives, fractional.length(needed))
    fitting = np.flatnonzero(bits <= goal.budget)
    if not len(fitting) or fitting[-1] == len(bits) - 1:
        return None
    at = int(fitting[-1])
    column = float(bits[at + 1] - bits[at])
    length = at + float(goal.budget - bits[at]) / column
    for _ in range(_CORRECTIONS):
        found = _at(kind, goal, negatives, length)
        if found is None or found.bits <= goal.budget:
            return found
        # A fraction of a column takes a few bits of overhead.
        length -= (found.bits - goal.budget + 1) / column
    return None


def _at(kind: str, goal: Goal, negatives: int, length: float) -> _Fraction | None:
    if length < KINDS[kind].coarsest:
        return None
    bits, rate = fingerprint_layer(kind, goal.keys, length)
    return _Fraction(length, rate, bits + function_bits(math.ceil(goal.keys + rate * negatives)))


def _highest_rate(goal: Goal, psi: float) -> float:
    """The highest rate of the first layer at which a stack meets every constraint."""
    needed = [1.0, 2 * goal.max_fpr_bound]
    if psi < 1:
        needed.append(2 * goal.fpr / (1 - psi))
    if goal.present < 1:
        needed.append((goal.max_checks - 2 * goal.present) / (1 - goal.present) - 1)
    return min(needed) * (1 - 1e-12)  # a share is rounded
