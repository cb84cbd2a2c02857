"""Estimates of the fraction of later queries for values not in a log, and smoothed counts.

*Leave-one-out.* Leave out each query in turn; it is for an unseen value if its value is not among
the others. This is the fraction of queries whose value occurs once (Good 1953; Deeds, Hentschel,
Idreos 2021, 5.1). It is correct for independent queries. In real logs, the queried values change
over time.

*Split in time.* The fraction s of queries in the second half whose value is not in the first half
includes this drift. But half a log contains fewer values than the whole log: if o and o' are the
leave-one-out estimates for the log and for its first half, drift accounts for s − o' of the
queries. If drift continues at this rate, o + (s − o') of the later queries are for unseen values;
if it slows down as new values become rarer, s·o/o' are. The estimate is the geometric mean of the
two. On four request traces it is within a factor of 1.7 of the fraction in the half of the trace
that follows, where o is up to 7 times too low and s up to 2.4 times too high
(``python -m experiments --only stacked/section5_1``).

The larger of the two estimates is used.

*Smoothing.* Values that occur once are overrepresented in a log: they were seen by chance. Frequent
values are not. So the mass of unseen values is not taken from all values in proportion; the same
discount is subtracted from every count. It is the fraction of values that occur once, so that the
discounts add up to the leave-one-out estimate. The Good–Turing estimate is also close to a constant
discount for counts above one (Church and Gale 1991; Ney, Essen, Kneser 1994).
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Method = Literal["leave-one-out", "split in time", "not counted", "given"]
"""How the unseen fraction was estimated; "not counted" is the fraction of queries that did not fit
into the memory for counts, and "given" was passed by the caller."""


class Unseen(NamedTuple):
    """The fraction ℓ of queries for unseen values, its method, and the discount of each count."""

    share: float
    method: Method
    discount: float


class LogStatistics(NamedTuple):
    """The statistics of a log that the estimates use: numbers of queries and values, by half.

    ``values`` distinct values have ``total`` queries, ``early`` of them in the first half. ``once``
    values occur once in the log, ``once_early`` once in the first half; ``new`` queries of the
    second half are for values that the first half does not have. Where the order is not known, no
    query is early.
    """

    values: int
    total: int
    once: int
    early: int
    once_early: int
    new: float

    def unseen(self) -> Unseen:
        """Estimate ℓ: the larger of leave-one-out and, if there are two halves, a split in time."""
        if self.total == 0:
            return Unseen(1.0, "leave-one-out", 0.0)
        left_out, discount = self.once / self.total, self.once / self.values
        late = self.total - self.early
        if not self.early or not late:
            return Unseen(left_out, "leave-one-out", discount)
        split = self.new / late
        drift = max(0.0, split - self.once_early / self.early)
        continued = min(1.0, left_out + drift)
        # Add one to both, so that a log in which every value occurs twice does not give 0.
        fewer = (self.once + 1) / self.total / ((self.once_early + 1) / self.early)
        later = math.sqrt(continued * split * min(1.0, fewer))
        if later > left_out * (1 + 1e-9):  # beyond rounding errors
            return Unseen(later, "split in time", discount)
        return Unseen(left_out, "leave-one-out", discount)


def leave_one_out(counts: npt.NDArray[Any]) -> Unseen:
    """Estimate ℓ from counts alone, as for independent queries.

    >>> leave_one_out(np.array([3, 1, 2, 2]))
    Unseen(share=0.125, method='leave-one-out', discount=0.25)
    """
    once = int(np.count_nonzero(counts == 1))
    return LogStatistics(len(counts), int(counts.sum()), once, 0, 0, 0).unseen()


def estimate(
    counts: npt.NDArray[Any], first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]
) -> Unseen:
    """Estimate ℓ from a log that was counted exactly.

    ``first`` and ``second`` are the positions of each value's first two queries in the log. If a
    value occurs once, its second position is after the end.

    >>> found = estimate(np.array([3, 1, 2]), np.array([0, 1, 4]), np.array([2, 9, 5]))
    >>> round(found.share, 2), found.method, round(found.discount, 2)
    (0.41, 'split in time', 0.33)
    """
    total = int(counts.sum())
    half = total // 2
    return LogStatistics(
        len(counts),
        total,
        once=int(np.count_nonzero(counts == 1)),
        early=half,
        once_early=int(np.count_nonzero((first < half) & (second >= half))),
        new=float(counts[first >= half].sum()),
    ).unseen()


def estimate_incomplete(
    counts: npt.NDArray[Any], first: npt.NDArray[np.int64], total: int
) -> Unseen:
    """Estimate ℓ if some of the ``total`` queries were not counted, for lack of memory.

    Leave-one-out is not possible: rare values are missing. Instead, ℓ is at least the fraction of
    queries that were not counted.

    >>> estimate_incomplete(np.array([4, 3]), np.array([0, 1]), total=10)
    Unseen(share=0.3, method='not counted', discount=0.0)
    """
    half = total // 2
    lost = (total - int(counts.sum())) / total
    split = float(counts[first >= half].sum()) / (total - half)
    if split > lost:
        return Unseen(split, "split in time", 0.0)
    return Unseen(lost, "not counted", 0.0)
