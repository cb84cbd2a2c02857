"""Stable Bloom filters: limits, convergence, false negatives, and sizes.

The symbols follow Deng and Rafiei 2006 and Liu, Zheng, Shen, Chen 2020 (whose equation numbers are
given): m ``cells`` that hold at most Max (``max_value``), K ``hashes`` per key, P
``decrements`` per insertion, δ the ``gap``: the insertions between a key and its next query.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special

MAX_HASHES = 16
"""The largest number of cells per key to try: at rates above 10⁻⁶ the optimum has fewer."""

MAX_VALUES = (1, 2, 3, 5, 7)
"""The values to try for Max, in counters of 1, 2 and 3 bits."""

MIN_CELLS = 8
"""The fewest cells per cell that an insertion changes. The formulas assume that the cells of a key
are independent, which does not hold if an insertion changes a large part of the filter."""


class StableSize(NamedTuple):
    """A stable Bloom filter's size: m, Max, K and P."""

    cells: int
    max_value: int
    hashes: int
    decrements: int

    @property
    def bits(self) -> int:
        """The bits of all counters."""
        return self.cells * counter_bits(self.max_value)


def counter_bits(max_value: int) -> int:
    """Bits of a counter that holds at most Max.

    >>> counter_bits(1), counter_bits(3), counter_bits(7)
    (1, 2, 3)
    """
    return max_value.bit_length()


def zeros_limit(size: StableSize) -> float:
    """Return the long-run fraction of cells that are zero (Eq. 5).

    >>> round(zeros_limit(StableSize(10_000, 1, 6, 12)), 4)
    0.6665
    """
    odds = size.decrements * (1 / size.hashes - 1 / size.cells)
    return (odds / (1 + odds)) ** size.max_value


def limit_rate(size: StableSize) -> float:
    """Return the long-run rate (Eq. 6), for any stream.

    >>> round(limit_rate(StableSize(10_000, 1, 6, 12)), 5)
    0.00138
    """
    return float((1 - zeros_limit(size)) ** size.hashes)


def zeros_after(size: StableSize, insertions: float) -> float:
    """Return the fraction of cells that are zero after some insertions into an empty filter.

    A cell is zero unless one of its last Max changes set it. The changes have a Poisson
    distribution, so the fraction falls from 1 to `zeros_limit` like the distribution of the time
    of the Max-th change. (The approximation of the paper, a step of K/m·(1 − K/m)^n, is its first
    term.)

    >>> zeros_after(StableSize(1000, 3, 4, 9), 0)
    1.0
    """
    limit = zeros_limit(size)
    falls = limit ** (1 / size.max_value)
    events = (size.hashes + size.decrements) / size.cells * insertions
    # No set among n < Max changes, or none among the last Max of more.
    counts = np.arange(size.max_value)
    few = np.exp(-events) * events**counts / special.factorial(counts)
    return float((few * falls**counts).sum() + limit * special.gammainc(size.max_value, events))


def rate_after(size: StableSize, insertions: float) -> float:
    """Return the rate after some insertions into an empty filter.

    >>> f = StableSize(10_000, 1, 6, 12)
    >>> rate_after(f, 0), round(rate_after(f, 10_000) / limit_rate(f), 3)
    (0.0, 1.0)
    """
    return float((1 - zeros_after(size, insertions)) ** size.hashes)


def faded(size: StableSize, gap: float) -> float:
    """Return the probability that a cell of a key is zero ``gap`` insertions later.

    An insertion sets the cell with probability s = 1 − (1 − 1/m)^K, and otherwise decrements it
    with probability P/m. The cell was Max, so it is zero if there were at least Max changes and the
    last Max were decrements. The number of changes is binomial, and independent of their kinds:

        p = zeros_limit · I_e(Max, δ − Max + 1),    e = s + (1 − s)·P/m.

    In the limit of large m, this is zeros_limit · Γ_reg(Max, (K + P)·δ/m). It is the closed form of
    Eq. 21; see `faded_printed`.

    >>> faded(StableSize(1000, 3, 4, 9), 2)
    0.0
    """
    if gap < size.max_value:
        return 0.0
    set_again = -math.expm1(size.hashes * math.log1p(-1 / size.cells)) if size.cells > 1 else 1.0
    changes = set_again + (1 - set_again) * size.decrements / size.cells
    happened = special.betainc(size.max_value, gap - size.max_value + 1, min(changes, 1.0))
    return float(zeros_limit(size) * happened)


def faded_printed(size: StableSize, gap: int, set_again: float) -> float:
    """Eq. 21 as printed, with k_ij (``set_again``) the probability that an insertion sets the cell.

    It sums over the insertions since the cell was last set, each of which decrements it at most
    once. This is exact for adjacent cells if P is at most m, and too low for independent cells.

    >>> f = StableSize(1000, 1, 4, 9)
    >>> abs(faded_printed(f, 500, 4 / 1000) - faded(f, 500)) < 0.001
    True
    """
    since = np.arange(size.max_value, gap)
    share = size.decrements / size.cells
    lost = special.betainc(size.max_value, since - size.max_value + 1, share)
    never = (
        special.betainc(size.max_value, max(gap - size.max_value + 1, 1), share)
        if gap >= size.max_value
        else 0
    )
    return float(
        (lost * set_again * (1 - set_again) ** since).sum() + never * (1 - set_again) ** gap
    )


def false_negatives(size: StableSize, gap: float) -> float:
    """Return the fraction of keys rejected ``gap`` insertions later (Eq. 14 and 15).

    >>> f = StableSize(2**16, 1, 4, 9)
    >>> 0 < false_negatives(f, 100) < false_negatives(f, 2000) < 1
    True
    """
    return 1 - (1 - faded(size, gap)) ** size.hashes


def decrements(hashes: int, max_value: int, rate: float) -> float:
    """Return P for a long-run rate, from Eq. 6; Eq. 19 as printed lacks a factor.

    >>> round(decrements(6, 1, 0.0016), 2), round(decrements_printed(6, 1, 0.0016), 2)
    (11.54, 17.54)
    """
    falls = (1 - rate ** (1 / hashes)) ** (1 / max_value)
    return float(hashes * falls / (1 - falls))


def decrements_printed(hashes: int, max_value: int, rate: float) -> float:
    """Eq. 19 as printed."""
    return float(hashes / (1 - (1 - rate ** (1 / hashes)) ** (1 / max_value)))


def rounded_decrements(hashes: int, max_value: int, rate: float) -> int:
    """Return P as a whole number, rounded up to keep the rate."""
    return max(1, math.ceil(decrements(hashes, max_value, rate) - 1e-9))


def size(bits: int, fpr: float, gap: int) -> StableSize:
    """Find the filter of these bits and at most this rate that rejects the fewest keys.

    >>> found = size(2**16, 0.01, 2000)
    >>> found, round(false_negatives(found, 2000), 2)
    (StableSize(cells=65536, max_value=1, hashes=3, decrements=11), 0.62)
    """
    best = min(_candidates(bits, fpr), key=lambda size: false_negatives(size, gap), default=None)
    if best is None:
        raise ValueError(f"bits must be at least 64 for a stable filter with fpr={fpr}, not {bits}")
    return best


def _independent(size: StableSize) -> bool:
    """Whether there are enough cells to treat the updates of a cell as independent."""
    return MIN_CELLS * (size.decrements + size.hashes) <= size.cells


def _candidates(bits: int, fpr: float) -> list[StableSize]:
    found = []
    for max_value in MAX_VALUES:
        cells = bits // counter_bits(max_value)
        for hashes in range(1, MAX_HASHES + 1):
            size = StableSize(cells, max_value, hashes, rounded_decrements(hashes, max_value, fpr))
            while _independent(size) and limit_rate(size) > fpr:  # because of 1/m, which P neglects
                size = size._replace(decrements=size.decrements + 1)
            if _independent(size):
                found.append(size)
    return found


@lru_cache(maxsize=256)
def size_for(fnr: float, fpr: float, gap: int) -> StableSize:
    """Find the smallest filter with at most this rate and these false negatives at this gap.

    >>> found = size_for(0.1, 0.01, 1000)
    >>> smaller = size(found.bits * 19 // 20, 0.01, 1000)
    >>> false_negatives(found, 1000) <= 0.1 < false_negatives(smaller, 1000)
    True
    """

    def enough(bits: int) -> bool:
        found = _candidates(bits, fpr)
        return any(false_negatives(size, gap) <= fnr for size in found)

    high = 64
    while not enough(high):
        high *= 2
        if high > 2**56:
            raise ValueError(f"fnr must be higher than {fnr}: no size reaches it at gap {gap}")
    low = high // 2
    while high - low > max(1, high // 1024):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return size(high, fpr, gap)
