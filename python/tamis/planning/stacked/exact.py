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
        rates, lengths, bits = _first_layers(kind, goal)
        bits = bits + function_bits(goal.keys + rates * negatives)
        expected, checks = metrics.exact_rate(rates, psi), metrics.exact_checks(rates)
        allowed = goal.allowed(expected, rates / 2, psi, checks, bits)
        value = goal.value(expected, psi, checks, kind)
        scores = np.where(allowed, bits if goal.smallest else value, math.inf)
        # Where nothing is unknown, every rate of the layer is as good: the lowest that fits.
        i = int(np.lexsort((rates, scores))[0])
        if not scores[i] < cutoff:
            return None
        length = (int(lengths[i]),) if lengths[i] else ()
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


@lru_cache(maxsize=8)
def _first_layers(kind: str, goal: Goal) -> tuple[Array, Array, Array]:
    """Rate, fingerprint length and bits of each layer that the keys could have."""
    lengths = KINDS[kind].lengths
    if lengths is None:
        least = goal.fpr / 4 if goal.smallest else 2.0 ** -(goal.budget / goal.keys)
        rates = np.geomspace(max(least, FLOOR), _LARGEST, _POINTS)
        return rates, np.zeros(_POINTS), goal.keys * bits_per_item(rates)
    layers = [fingerprint_layer(kind, goal.keys, length) for length in lengths]
    bits, rates = np.array(layers).T
    return rates, np.array(lengths), bits
