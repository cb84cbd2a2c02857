"""Allocation for reads, where the rest of each filter is in a file (hybrid mode).

If the bits in memory accept a key, the rest of the filter is read. They accept every key of the
set, so of u queries, of which a share π is for keys of the set, u·(π + (1 − π)·ε) read; and none if
the whole filter is in memory. That is the problem of `prices` with utilities u·(1 − π), and with a
gain of all remaining reads at the last bit. At a price of a bit, each filter is whole or keeps the
bits worth the price, whichever costs less. As the price falls, more filters are whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tamis.planning.collection.curves import Curve, Floats, Ints
from tamis.planning.collection.prices import optimal_price, search_price

_FEW = 24
"""Up to this many filters, it is tried for each whether it should be whole."""


@dataclass(frozen=True)
class Reads:
    """Filters whose rest is in a file: the share of their queries that read it."""

    inside: Curve
    present: Floats

    @property
    def bits(self) -> Ints:
        """Bits of each full filter."""
        return self.inside.bits

    def take(self, which: npt.NDArray[np.intp]) -> Reads:
        """Select some of the filters."""
        return Reads(self.inside.take(which), self.present[which])

    def rate(self, kept: Ints) -> Floats:
        """π + (1 − π)·ε, and 0 for a whole filter."""
        reads = self.present + (1 - self.present) * self.inside.rate(kept)
        return np.where(kept >= self.bits, 0.0, reads)

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """All bits if that costs less than the bits worth the price and the reads that remain."""
        bits = self.bits
        with np.errstate(divide="ignore"):
            kept = self.inside.worth(log_price, log_utility + np.log1p(-self.present))
        price = np.exp(np.minimum(log_price - log_utility, 600.0))
        reads = self.present + (1 - self.present) * self.inside.rate(kept)
        return np.where(price * (bits - kept) <= reads, bits, kept)


def optimal_reads(
    curve: Curve, utility: Floats, present: Floats, budget: int, near: float | None = None
) -> tuple[Ints, float]:
    """Return the bits to keep of each filter that minimize reads, and the log price of a bit.

    Where the budget ends between two filters that would be whole at one price, the best that fit
    are; the others share the rest as in `prices.optimal`.

    >>> from tamis.planning.collection.curves import Segmented
    >>> curve = Segmented(np.full(3, 80), np.full(3, 4), np.full(3, 14))
    >>> half = np.full(3, 0.5)
    >>> optimal_reads(curve, np.array([5.0, 4.0, 3.0]), half, 130)[0].tolist()
    [80, 30, 20]
    """
    reads = Reads(curve, present)
    few, many, price = search_price(reads, utility, budget, near)
    whole, left = few >= reads.bits, budget - int(few.sum())
    jump = np.flatnonzero(~whole & (many >= reads.bits) & (utility > 0))
    for i in jump[np.argsort(-utility[jump] / np.maximum(reads.bits[jump], 1), kind="stable")]:
        if reads.bits[i] - few[i] <= left:
            whole[i], left = True, left - int(reads.bits[i] - few[i])
    kept = _with_whole(reads, utility, whole, budget)
    if len(utility) <= _FEW:
        kept = _improved(reads, utility, whole, kept, budget)
    return kept, price


def _with_whole(reads: Reads, utility: Floats, whole: npt.NDArray[np.bool_], budget: int) -> Ints:
    """Return the bits to keep if these filters are whole."""
    kept = np.where(whole, reads.bits, 0)
    rest = np.flatnonzero(~whole)
    if len(rest):
        weights = utility[rest] * (1 - reads.present[rest])
        left = budget - int(kept.sum())
        kept[rest] = optimal_price(reads.inside.take(rest), weights, left)[0]
    return kept


def _improved(
    reads: Reads, utility: Floats, whole: npt.NDArray[np.bool_], kept: Ints, budget: int
) -> Ints:
    """Try for each filter whether it should be whole, and for each pair whether to swap them."""
    best, found = float(utility @ reads.rate(kept)), True
    while found:
        found = False
        for i in range(len(utility)):
            for j in range(i, len(utility)):
                other = whole.copy()
                other[i] = not other[i]
                if j != i:
                    other[j] = not other[j]
                if int(reads.bits[other].sum()) > budget or (j != i and other[i] == other[j]):
                    continue
                tried = _with_whole(reads, utility, other, budget)
                cost = float(utility @ reads.rate(tried))
                if cost < best * (1 - 1e-9):
                    best, kept, whole, found = cost, tried, other, True
    return kept
