"""Stable Bloom filters: limits, convergence, false negatives, and sizes.

The symbols are those of Deng and Rafiei 2006 and of Liu, Zheng, Shen, Chen 2020 (whose equation
numbers are given): m ``cells`` that hold at most Max (``most``), K ``hashes`` per key, P
``decrements`` per insertion, δ the ``gap`` in insertions between a key and the question for it.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

MOST_HASHES = 16
"""The most cells per key that are considered: at rates above 10⁻⁶ the optimum has fewer."""

MOST_VALUES = (1, 2, 3, 5, 7)
"""What counters of 1, 2 and 3 bits may be set to."""

LEAST_CELLS = 8
"""Cells per cell that is lowered by an insertion, at least: the formulas take the cells of a key as
independent, and in a filter that is lowered nearly whole each time they are not."""


class Size(NamedTuple):
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


def zeros_limit(size: Size) -> float:
    """The share of cells that are zero in the long run (Eq. 5).

    >>> round(zeros_limit(Size(10_000, 1, 6, 12)), 4)
    0.6665
    """
    odds = size.decrements * (1 / size.hashes - 1 / size.cells)
    return (odds / (1 + odds)) ** size.most


def limit_rate(size: Size) -> float:
    """The rate in the long run (Eq. 6), whatever the stream.

    >>> round(limit_rate(Size(10_000, 1, 6, 12)), 5)
    0.00138
    """
    return float((1 - zeros_limit(size)) ** size.hashes)


def zeros_after(size: Size, insertions: float) -> float:
    """The share of cells that are zero after so many insertions, in a filter that began empty.

    A cell is zero unless one of its last Max changes set it: none of them did if there were none,
    and the changes are Poisson, so the share falls from 1 to `zeros_limit` like the distribution
    of the time of the Max-th change. (The approximation of the paper, a step of K/m·(1 − K/m)^n,
    is the first term of it.)

    >>> zeros_after(Size(1000, 3, 4, 9), 0)
    1.0
    """
    limit = zeros_limit(size)
    falls = limit ** (1 / size.most)
    events = (size.hashes + size.decrements) / size.cells * insertions
    # No set among n < Max changes, or none among the last Max of more.
    counts = np.arange(size.most)
    few = np.exp(-events) * events**counts / special.factorial(counts)
    return float((few * falls**counts).sum() + limit * special.gammainc(size.most, events))


def rate_after(size: Size, insertions: float) -> float:
    """The rate after so many insertions into an empty filter.

    >>> f = Size(10_000, 1, 6, 12)
    >>> rate_after(f, 0), round(rate_after(f, 10_000) / limit_rate(f), 3)
    (0.0, 1.0)
    """
    return float((1 - zeros_after(size, insertions)) ** size.hashes)


def faded(size: Size, gap: float) -> float:
    """The probability that one cell of a key is zero ``gap`` insertions later.

    An insertion sets the cell with probability s = 1 − (1 − 1/m)^K, and else lowers it with P/m.
    The cell was Max, so it is zero if there were at least Max changes and the last Max of them
    lowered it. Changes are binomial, and what each of them is does not depend on when it is:

        p = zeros_limit · I_e(Max, δ − Max + 1),    e = s + (1 − s)·P/m.

    In the limit of large m this is zeros_limit · Γ_reg(Max, (K + P)·δ/m). It replaces Eq. 21,
    which is the same sum written out; see `faded_printed`.

    >>> faded(Size(1000, 3, 4, 9), 2)
    0.0
    """
    if gap < size.most:
        return 0.0
    set_again = -math.expm1(size.hashes * math.log1p(-1 / size.cells)) if size.cells > 1 else 1.0
    changes = set_again + (1 - set_again) * size.decrements / size.cells
    happened = special.betainc(size.most, gap - size.most + 1, min(changes, 1.0))
    return float(zeros_limit(size) * happened)


def faded_printed(size: Size, gap: int, set_again: float) -> float:
    """Eq. 21 as printed, with k_ij (``set_again``) the probability that an insertion sets the cell.

    It sums over the insertions since the cell was last set, in which it may lose at most one each:
    right for cells in a row while P is at most m, too few for cells that are chosen independently.

    >>> f = Size(1000, 1, 4, 9)
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


def false_negatives(size: Size, gap: float) -> float:
    """The share of keys that are denied ``gap`` insertions after they came (Eq. 14 and 15).

    >>> f = Size(2**16, 1, 4, 9)
    >>> 0 < false_negatives(f, 100) < false_negatives(f, 2000) < 1
    True
    """
    return 1 - (1 - faded(size, gap)) ** size.hashes


def decrements(hashes: int, most: int, rate: float) -> float:
    """P for a rate in the long run, from Eq. 6; Eq. 19 as printed lacks a factor.

    >>> round(decrements(6, 1, 0.0016), 2), round(decrements_printed(6, 1, 0.0016), 2)
    (11.54, 17.54)
    """
    falls = (1 - rate ** (1 / hashes)) ** (1 / most)
    return float(hashes * falls / (1 - falls))


def decrements_printed(hashes: int, most: int, rate: float) -> float:
    """Eq. 19 as printed."""
    return float(hashes / (1 - (1 - rate ** (1 / hashes)) ** (1 / most)))


def whole_decrements(hashes: int, most: int, rate: float) -> int:
    """P in whole cells; up, since fewer would break the rate."""
    return max(1, math.ceil(decrements(hashes, most, rate) - 1e-9))


def size(bits: int, fpr: float, gap: int) -> Size:
    """Find the filter of these bits and at most this rate that denies fewest keys at this gap.

    >>> found = size(2**16, 0.01, 2000)
    >>> found, round(false_negatives(found, 2000), 2)
    (Size(cells=65536, most=1, hashes=3, decrements=11), 0.62)
    """
    best = min(_candidates(bits, fpr), key=lambda size: false_negatives(size, gap), default=None)
    if best is None:
        raise ValueError(f"bits is {bits}; a stable filter with fpr {fpr} needs at least 64")
    return best


def _independent(size: Size) -> bool:
    return LEAST_CELLS * (size.decrements + size.hashes) <= size.cells


def _candidates(bits: int, fpr: float) -> list[Size]:
    found = []
    for most in MOST_VALUES:
        cells = bits // counter_bits(most)
        for hashes in range(1, MOST_HASHES + 1):
            size = Size(cells, most, hashes, whole_decrements(hashes, most, fpr))
            while _independent(size) and limit_rate(size) > fpr:  # by 1/m, neglected so far
                size = size._replace(decrements=size.decrements + 1)
            if _independent(size):
                found.append(size)
    return found


@lru_cache(maxsize=256)
def size_for(fnr: float, fpr: float, gap: int) -> Size:
    """Find the fewest bits with at most this rate that deny at most this share at this gap.

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
            raise ValueError(f"fnr is {fnr}; no size reaches it at a gap of {gap}")
    low = high // 2
    while high - low > max(1, high // 1024):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return size(high, fpr, gap)


# What the groups of a stable learned filter add up to.


def single_rate(trusted: float, size: Size) -> float:
    """The rate of a single stable learned filter (Eq. 7).

    ``trusted`` is F_p, the share of absent keys that the classifier takes for members.

    >>> round(single_rate(0.01, Size(10_000, 1, 6, 12)), 4)
    0.0114
    """
    return trusted + (1 - trusted) * limit_rate(size)


def equal_cells(size: Size, insertions: int, escaping: float) -> float:
    """Cells that converge as fast when only a share ``escaping`` (F_n) is inserted (Eq. 8).

    Of the two solutions, the one where the filter is near its limit.

    >>> round(equal_cells(Size(10**6, 1, 6, 12), 10**8, 0.5) / 10**6, 2)
    0.5
    """
    from scipy.optimize import brentq  # slow to import, and seldom needed

    def log_step(cells: float, insertions: float) -> float:
        return math.log(size.hashes / cells) + insertions * math.log1p(-size.hashes / cells)

    wanted = log_step(size.cells, insertions)
    # The step is largest at K·n cells; below, it grows with the cells.
    high = min(size.cells, size.hashes * insertions * escaping)
    return float(
        brentq(lambda cells: log_step(cells, insertions * escaping) - wanted, size.hashes + 1, high)
    )


def shares(scores: Any, boundaries: Any) -> npt.NDArray[np.float64]:
    """The shares of scores in the groups (τ_{j−1}, τ_j] that the inner boundaries make (Eq. 9, 17).

    >>> shares([0.1, 0.2, 0.5, 0.9], [0.2, 0.5])
    array([0.5 , 0.25, 0.25])
    """
    groups = np.searchsorted(np.asarray(boundaries, dtype=float), np.asarray(scores), side="left")
    return np.bincount(groups, minlength=len(boundaries) + 1) / max(len(groups), 1)


def expected_rate(p: Any, rates: Any) -> float:
    """Σ p_j·α_j (Eq. 10): the rate over the groups, for absent keys that fall into j with p_j.

    >>> round(expected_rate([0.5, 0.5], [0.01, 0.03]), 3)
    0.02
    """
    return float(np.dot(p, rates))


def rate_bound(rates: Any) -> float:
    """The mean of α_j, a bound on `expected_rate` where p falls and α grows with j (Eq. 11, 12).

    >>> rate_bound([0.25, 0.75])
    0.5
    """
    return float(np.mean(rates))


def slowest(q: Any, sizes: list[Size]) -> float:
    """The exponent C of the convergence exp(−C·n): min_j q_j·K_j/m_j (Eq. 13, theorem 2).

    The paper has it upside down: a group with more cells converges later, not earlier.

    >>> slowest([0.5, 0.5], [Size(1000, 1, 5, 9), Size(2000, 1, 5, 9)])
    0.00125
    """
    return float(
        min(share * size.hashes / size.cells for share, size in zip(q, sizes, strict=True))
    )


def expected_false_negatives(q: Any, sizes: list[Size], gap: float) -> float:
    """Σ q_j·FN_j (Eq. 16), where group j sees only q_j·δ of the δ insertions.

    >>> one = Size(2000, 1, 4, 9)
    >>> two = expected_false_negatives([0.5, 0.5], [Size(1000, 1, 4, 9)] * 2, 500)
    >>> abs(two - false_negatives(one, 500)) < 0.01
    True
    """
    pairs = zip(q, sizes, strict=True)
    return float(sum(share * false_negatives(size, share * gap) for share, size in pairs))
