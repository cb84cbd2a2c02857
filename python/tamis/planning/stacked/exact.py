"""One layer over the keys, and a one-bit function over the keys and the negatives that pass it.

Keys map to 1, those negatives to 0, so that no stored negative is ever a false positive and any
other one is with probability α/2. The bits per key are about log2(1/α) + 1 + α·|N_f|/|P|.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from tamis.planning.bloom import bits_per_item
from tamis.planning.kinds import KINDS, fingerprint_layer
from tamis.planning.ribbon import columns_for
from tamis.planning.stacked import metrics
from tamis.planning.stacked.goal import FLOOR, Goal, Stack
from tamis.planning.stacked.metrics import Array
from tamis.planning.stacked.sweep import Search

_POINTS = 1024
_LARGEST = 0.9
_SINGLY = 64


def search_for(kind: str) -> Search:
    """Return the search for the best exact stack with a first layer of this kind."""

    def search(goal: Goal, negatives: int, psi: float, cutoff: float = math.inf) -> Stack | None:
        rates, lengths, first = _first_layers(kind, goal.keys, *_range(kind, goal))
        bits = first + function_bits(goal.keys + rates * negatives)
        if KINDS[kind].fractional:
            length = _fraction(goal, psi, rates, first, bits)
            rates, lengths, bits = rates[1:], lengths[1:], bits[1:]
            if length >= KINDS[kind].coarsest:
                size = fingerprint_layer(kind, goal.keys, length)
                total = size.bits + _function_bits(math.ceil(goal.keys + size.rate * negatives))
                rates, lengths = np.append(rates, size.rate), np.append(lengths, length)
                bits = np.append(bits, total)
        expected, checks = metrics.exact_rate(rates, psi), metrics.exact_checks(rates)
        allowed = goal.allowed(expected, rates / 2, psi, checks, bits)
        value = goal.value(expected, psi, checks, kind)
        scores = np.where(allowed, bits if goal.smallest else value, math.inf)
        # Where nothing is unknown, every rate of the layer is as good: the lowest that fits.
        i = int(np.lexsort((rates, scores))[0])
        if not scores[i] < cutoff:
            return None
        length = (float(lengths[i]),) if lengths[i] else ()
        rate, size, cost = float(rates[i]), float(bits[i]), float(value[i])
        return Stack(kind, negatives, psi, (rate,), length, True, size, cost)

    return search


def _function_bits(items: int) -> int:
    """Bits of the function of these items: a ribbon of one column."""
    return fingerprint_layer("ribbon", items, 1).bits


def function_bits(items: Array) -> Array:
    """Bits of the function of each number of items; of many numbers, from neighbouring ones."""
    if len(items) <= _SINGLY:
        return np.array([_function_bits(math.ceil(n)) for n in items.tolist()])
    octave = np.exp2(np.ceil(np.log2(items)))
    sizes = {n: _function_bits(int(n)) / n for n in set(octave.tolist())}
    return np.array([sizes[n] for n in octave.tolist()]) * items


def _range(kind: str, goal: Goal) -> tuple[float, float]:
    """The rates between which layers of any rate are tried."""
    if not KINDS[kind].continuous:
        return 0.0, 0.0
    least = goal.fpr / 4 if goal.smallest else 2.0 ** -(goal.budget / goal.keys)
    return max(least, FLOOR), _LARGEST


@lru_cache(maxsize=8)
def _first_layers(kind: str, keys: int, least: float, most: float) -> tuple[Array, Array, Array]:
    """Rate, fingerprint length and bits of each layer that the keys could have.

    Where lengths can be fractions, no length at all comes first, for those below one.
    """
    lengths = KINDS[kind].lengths
    if lengths is None:
        rates = np.geomspace(least, most, _POINTS)
        return rates, np.zeros(_POINTS), keys * bits_per_item(rates)
    tried = [0, *lengths] if KINDS[kind].fractional else lengths
    layers = [fingerprint_layer(kind, keys, length) for length in tried]
    bits, rates = np.array(layers).T
    return rates, np.array(tried, float), bits


def _fraction(goal: Goal, psi: float, rates: Array, first: Array, bits: Array) -> float:
    """Find the best length of the first layer that is not whole; 0 if there is none.

    Between two whole lengths, of which the first is 0, the bits are linear in the length. So those
    within a budget end between the longest that fits and the next; and for a rate, the best is
    whole or the shortest that has it. A part of a column takes a few bits more in itself.
    """
    if goal.smallest:
        needed = _highest_rate(goal, psi)
        return columns_for(needed) if rates[-1] <= needed < 1 else 0.0
    fitting = np.flatnonzero(bits <= goal.budget)
    at = int(fitting[-1]) if len(fitting) else len(bits) - 1
    if at == len(bits) - 1:
        return 0.0
    column, left = bits[at + 1] - bits[at], goal.budget - bits[at]
    share = float(left / column)
    linear = first[at] + share * (first[at + 1] - first[at])
    more = fingerprint_layer("ribbon", goal.keys, at + share).bits - linear
    return max(at + (left - more - 1) / column, 0.0)


def _highest_rate(goal: Goal, psi: float) -> float:
    """The highest rate of the first layer with which a stack keeps to every constraint."""
    needed = [1.0, 2 * goal.max_fpr_bound]
    if psi < 1:
        needed.append(2 * goal.fpr / (1 - psi))
    if goal.present < 1:
        needed.append((goal.max_checks - 2 * goal.present) / (1 - goal.present) - 1)
    return min(needed) * (1 - 1e-12)  # a share is rounded
