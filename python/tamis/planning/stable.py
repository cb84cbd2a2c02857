"""Stable Bloom filters: limits, convergence, false negatives, and sizes.

The symbols follow Deng and Rafiei 2006 and Liu, Zheng, Shen, Chen 2020 (whose equation numbers are
given): m ``cells`` that hold at most Max (``most``), K ``hashes`` per key, P
``decrements`` per insertion, δ the ``gap``: the insertions between a key and its next query.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
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
    most: int
    hashes: int
    decrements: int

    @property
    def bits(self) -> int:
        """The bits of all counters."""
        return self.cells * counter_bits(self.most)


def counter_bits(most: int) -> int:
    """Bits of a counter that holds at most Max.

    >>> counter_bits(1), counter_bits(3), counter_bits(7)
    (1, 2, 3)
    """
    return most.bit_length()


def zeros_limit(size: StableSize) -> float:
    """Return the long-run fraction of cells that are zero (Eq. 5).

    >>> round(zeros_limit(StableSize(10_000, 1, 6, 12)), 4)
    0.6665
    """
    odds = size.decrements * (1 / size.hashes - 1 / size.cells)
    return (odds / (1 + odds)) ** size.most


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
    falls = limit ** (1 / size.most)
    events = (size.hashes + size.decrements) / size.cells * insertions
    # No set among n < Max changes, or none among the last Max of more.
    counts = np.arange(size.most)
    few = np.exp(-events) * events**counts / special.factorial(counts)
    return float((few * falls**counts).sum() + limit * special.gammainc(size.most, events))


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
    if gap < size.most:
        return 0.0
    set_again = -math.expm1(size.hashes * math.log1p(-1 / size.cells)) if size.cells > 1 else 1.0
    changes = set_again + (1 - set_again) * size.decrements / size.cells
    happened = special.betainc(size.most, gap - size.most + 1, min(changes, 1.0))
    return float(zeros_limit(size) * happened)


def faded_printed(size: StableSize, gap: int, set_again: float) -> float:
    """Eq. 21 as printed, with k_ij (``set_again``) the probability that an insertion sets the cell.

    It sums over the insertions since the cell was last set, each of which decrements it at most
    once. This is exact for adjacent cells if P is at most m, and too low for independent cells.

    >>> f = StableSize(1000, 1, 4, 9)
    >>> abs(faded_printed(f, 500, 4 / 1000) - faded(f, 500)) < 0.001
    True
    """
    since = np.arange(size.most, gap)
    share = size.decrements / size.cells
    lost = special.betainc(size.most, since - size.most + 1, share)
    never = (
        special.betainc(size.most, max(gap - size.most + 1, 1), share) if gap >= size.most else 0
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


def decrements(hashes: int, most: int, rate: float) -> float:
    """Return P for a long-run rate, from Eq. 6; Eq. 19 as printed lacks a factor.

    >>> round(decrements(6, 1, 0.0016), 2), round(decrements_printed(6, 1, 0.0016), 2)
    (11.54, 17.54)
    """
    falls = (1 - rate ** (1 / hashes)) ** (1 / most)
    return float(hashes * falls / (1 - falls))


def decrements_printed(hashes: int, most: int, rate: float) -> float:
    """Eq. 19 as printed."""
    return float(hashes / (1 - (1 - rate ** (1 / hashes)) ** (1 / most)))


def whole_decrements(hashes: int, most: int, rate: float) -> int:
    """Return P as a whole number, rounded up to keep the rate."""
    return max(1, math.ceil(decrements(hashes, most, rate) - 1e-9))


def size(bits: int, fpr: float, gap: int) -> StableSize:
    """Find the filter of these bits and at most this rate that rejects the fewest keys.

    >>> found = size(2**16, 0.01, 2000)
    >>> found, round(false_negatives(found, 2000), 2)
    (StableSize(cells=65536, most=1, hashes=3, decrements=11), 0.62)
    """
    best = min(_candidates(bits, fpr), key=lambda size: false_negatives(size, gap), default=None)
    if best is None:
        raise ValueError(f"bits must be at least 64 for a stable filter with fpr={fpr}, not {bits}")
    return best


def _independent(size: StableSize) -> bool:
    return MIN_CELLS * (size.decrements + size.hashes) <= size.cells


def _candidates(bits: int, fpr: float) -> list[StableSize]:
    found = []
    for most in MAX_VALUES:
        cells = bits // counter_bits(most)
        for hashes in range(1, MAX_HASHES + 1):
            size = StableSize(cells, most, hashes, whole_decrements(hashes, most, fpr))
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


# Totals over the groups of a stable learned filter.


def single_rate(trusted: float, size: StableSize) -> float:
    """Return the rate of a single stable learned filter (Eq. 7).

    ``trusted`` is F_p, the fraction of absent keys that the classifier accepts.

    >>> round(single_rate(0.01, StableSize(10_000, 1, 6, 12)), 4)
    0.0114
    """
    return trusted + (1 - trusted) * limit_rate(size)


def equal_cells(size: StableSize, insertions: int, escaping: float) -> float:
    """Return the cells with equal convergence if a fraction ``escaping`` (F_n) is inserted (Eq. 8).

    Of the two solutions, this is the one in which the filter is near its limit.

    >>> round(equal_cells(StableSize(10**6, 1, 6, 12), 10**8, 0.5) / 10**6, 2)
    0.5
    """
    from scipy.optimize import brentq  # slow to import, and rarely needed

    def log_step(cells: float, insertions: float) -> float:
        return math.log(size.hashes / cells) + insertions * math.log1p(-size.hashes / cells)

    wanted = log_step(size.cells, insertions)
    # The step is largest at K·n cells; below, it grows with the cells.
    high = min(size.cells, size.hashes * insertions * escaping)
    return float(
        brentq(lambda cells: log_step(cells, insertions * escaping) - wanted, size.hashes + 1, high)
    )


def shares(scores: Any, boundaries: Any) -> npt.NDArray[np.float64]:
    """Return the fraction of scores in each group (τ_{j−1}, τ_j] (Eq. 9, 17).

    >>> shares([0.1, 0.2, 0.5, 0.9], [0.2, 0.5])
    array([0.5 , 0.25, 0.25])
    """
    groups = np.searchsorted(np.asarray(boundaries, dtype=float), np.asarray(scores), side="left")
    return np.bincount(groups, minlength=len(boundaries) + 1) / max(len(groups), 1)


def expected_rate(p: Any, rates: Any) -> float:
    """Return Σ p_j·α_j (Eq. 10), the rate over all groups.

    >>> round(expected_rate([0.5, 0.5], [0.01, 0.03]), 3)
    0.02
    """
    return float(np.dot(p, rates))


def rate_bound(rates: Any) -> float:
    """Return the mean of α_j, a bound of `expected_rate` if p falls and α rises (Eq. 11, 12).

    >>> rate_bound([0.25, 0.75])
    0.5
    """
    return float(np.mean(rates))


def slowest(q: Any, sizes: list[StableSize]) -> float:
    """Return the exponent C of the convergence exp(−C·n): min_j q_j·K_j/m_j (Eq. 13, theorem 2).

    The paper has it the wrong way round: a group with more cells converges later, not earlier.

    >>> slowest([0.5, 0.5], [StableSize(1000, 1, 5, 9), StableSize(2000, 1, 5, 9)])
    0.00125
    """
    return float(
        min(share * size.hashes / size.cells for share, size in zip(q, sizes, strict=True))
    )


def expected_false_negatives(q: Any, sizes: list[StableSize], gap: float) -> float:
    """Return Σ q_j·FN_j (Eq. 16), where group j gets only q_j·δ of the δ insertions.

    >>> one = StableSize(2000, 1, 4, 9)
    >>> two = expected_false_negatives([0.5, 0.5], [StableSize(1000, 1, 4, 9)] * 2, 500)
    >>> abs(two - false_negatives(one, 500)) < 0.01
    True
    """
    pairs = zip(q, sizes, strict=True)
    return float(sum(share * false_negatives(size, share * gap) for share, size in pairs))
