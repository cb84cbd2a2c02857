"""One budget for the filters of an LSM-tree's runs, which have the same known negatives.

A lookup of an absent key queries every run, so the expected number of wasted reads is Σ uᵢ·εᵢ. The
filter of a run of n keys is an exact stack (`planning.stacked.exact`): with a first layer of rate α
and N known negatives it takes n·(log2(1/α) + 1) + α·N bits, and the rate is ε = (1 − ψ(N))·α/2. At
a price λ of a bit, u·ε + λ·bits is minimal at

    α = n / (ln 2 · (N + u·(1 − ψ(N))/(2λ))),

so one search for the price divides the budget, as in `prices`. With no known negatives this is
Monkey (Dayan, Athanassoulis, Idreos 2017): rates in proportion to the number of keys.
"""

from __future__ import annotations

import math

import numpy as np

from tamis.planning.collection.curves import Floats, Ints
from tamis.planning.ribbon import MAX_COLUMNS
from tamis.planning.stacked.frequencies import Frequencies

_POINTS = 256  # numbers of known negatives that are tried
_HALVINGS = 60
_LOWEST, _HIGHEST = -200.0, 5.0  # logarithms of prices, for utilities up to 1


def split_runs(keys: Ints, utility: Floats, known: Frequencies, bits: int) -> Ints:
    """Divide bits among runs: return the bits of each run's filter, 0 if it gets none.

    >>> from tamis.planning.stacked.frequencies import Zipf
    >>> split_runs(np.array([1000, 10_000]), np.ones(2), Zipf(1.0, 10**6, 10**5), 110_000).tolist()
    [13019, 96980]
    """
    split = np.zeros(len(keys), np.int64)
    used = np.flatnonzero((keys > 0) & (utility > 0))
    if not len(used):
        return split
    runs = _Runs(keys[used], utility[used] / utility[used].max(), known)
    low, high = _LOWEST, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if runs.worth(middle).sum() > bits else (low, middle)
    shares = runs.worth(high)
    # Worth jumps from 0 at the price below which a filter pays, so bits may be left over: give them
    # to the filter with the largest jump.
    left = bits - float(shares.sum())
    if left > 0:
        more = runs.worth(low) - shares
        order = np.argsort(-more, kind="stable")
        shares[order[0]] += min(left, max(float(more[order[0]]), 0.0))
    # If all absent keys are known, the formula above leaves bits over, but filters of small runs
    # need more than it says: divide the rest in proportion to the keys.
    left = bits - float(shares.sum())
    if left > 0:
        shares += left * keys[used] / keys[used].sum()
    split[used] = np.floor(shares)
    return split


class _Runs:
    """How many bits each run should get at a given price per bit."""

    def __init__(self, keys: Ints, utility: Floats, known: Frequencies) -> None:
        counts = np.geomspace(1, known.size, _POINTS) if known.size else np.zeros(0)
        self.negatives = np.unique(np.concatenate([[0.0], np.round(counts)]))
        self.unknown = 1 - np.asarray(known.psi(self.negatives), np.float64)
        self.keys, self.utility = keys[:, None].astype(np.float64), utility[:, None]

    def worth(self, log_price: float) -> Floats:
        price = math.exp(log_price)
        gain = self.utility * self.unknown / 2
        rates = self.keys / (math.log(2) * (self.negatives + gain / price))
        rates = np.clip(rates, 2.0**-MAX_COLUMNS, 1.0)
        bits = self.keys * (1 - np.log2(rates)) + rates * self.negatives
        costs = gain * rates + price * bits
        best = np.argmin(costs, axis=1)[:, None]
        # Without a filter, every lookup of the run is a read.
        pays = np.take_along_axis(costs, best, 1) < self.utility
        worth: Floats = np.where(pays, np.take_along_axis(bits, best, 1), 0.0)[:, 0]
        return worth
