"""Bit-sliced filters: their size classes, and how many segments of each set to keep in memory.

A filter is a segmented Bloom filter. Sets with about as many keys form a class, whose segments have
one length, so that they can be stored by rows (`src/collection/sliced/`). How many segments each
set keeps is the problem of `tamis.planning.collection` in whole segments. Within a class the sets
that keep most come first, so that each segment is kept by the first sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tamis._checks import check_number
from tamis.planning.collection.curves import Floats, Ints, Segmented
from tamis.planning.collection.prices import optimal
from tamis.planning.collection.reads import optimal_reads

RATIO = 2.25
"""Keys of the largest set of a class, divided by the keys of the smallest.

A segment has n/ln 2 bits for the n keys in the middle of the class, so that half of the bits of its
filter are set. With 1.5 times as many keys or as few, a rate takes 6 or 5 % more bits than in a
segment of the best length, and 2 % on average over a class; 20 to 1,000 keys are six classes.
"""

MIN_SETS = 64
"""Below this number of sets, a word of a row is not full, and separate filters are as fast."""

_MANY = 1000  # sets: the padding of rows is then a small share


def segment_length(keys: int) -> int:
    """Bits of each segment of a set's filter.

    >>> [segment_length(keys) for keys in (1, 50, 90, 100, 1000)]
    [2, 84, 188, 188, 2133]
    """
    number = round(math.log(max(keys, 1), RATIO))
    return math.ceil(RATIO**number / math.log(2))


def filter_size(keys: int, fpr: float) -> tuple[int, int]:
    """Size the filter of a set: bits per segment, and the segments that reach the rate.

    >>> filter_size(100, 1e-4), filter_size(90, 1e-4), filter_size(1, 1e-4)
    ((188, 11), (188, 10), (2, 14))
    """
    fpr = check_number("fpr", fpr, "a rate from 2**-32 to below 1", least=2.0**-32, below=1)
    length = segment_length(keys)
    zeros = (1 - 1 / length) ** max(keys, 1)
    return length, min(64, max(1, math.ceil(math.log(fpr) / math.log1p(-zeros) - 1e-9)))


def is_sliceable(kinds: npt.NDArray[np.uint8], bits: Ints, hashes: Ints, counts: Ints) -> bool:
    """Whether all filters have the sizes that `filter_size` returns for some rate."""
    used = kinds > 0
    if not used.any() or (kinds[used] != 1).any() or (bits[used] % hashes[used]).any():
        return False
    numbers, which = np.unique(counts[used], return_inverse=True)
    lengths = np.array([segment_length(number) for number in numbers.tolist()])
    return bool((bits[used] // hashes[used] == lengths[which]).all())


@dataclass(frozen=True)
class Layout:
    """Sets class by class; in a class, sets with more segments come first.

    ``classes`` has the number of sets of each class, ``ids`` the sets with keys, ``segments`` how
    many each of them keeps, and ``order`` all sets by utility.
    """

    classes: npt.NDArray[np.uint32]
    ids: npt.NDArray[np.uint32]
    segments: npt.NDArray[np.uint8]
    order: npt.NDArray[np.uint32]
    bits: int


def lay_out(curve: Segmented, segments: Ints, utility: npt.NDArray[np.floating[Any]]) -> Layout:
    """Lay out sets that keep this number of segments.

    >>> n = np.array([9, 8, 9, 0])
    >>> curve = Segmented(17 * 6 * (n > 0), 6 * (n > 0), n)
    >>> a = lay_out(curve, np.array([1, 1, 2, 0]), np.array([1.0, 5.0, 2.0, 1.0]))
    >>> a.ids.tolist(), a.segments.tolist(), a.classes.tolist(), a.bits
    ([2, 1, 0], [2, 1, 1], [3], 272)
    """
    order = np.argsort(-utility, kind="stable").astype(np.uint32)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    lengths = curve.bits // np.maximum(curve.hashes, 1)
    ids = np.lexsort((rank, -segments, lengths))
    ids = ids[curve.keys[ids] > 0]
    _, classes = np.unique(lengths[ids], return_counts=True)
    return Layout(
        classes.astype(np.uint32),
        ids.astype(np.uint32),
        segments[ids].astype(np.uint8),
        order,
        _bits(lengths[ids], segments[ids], classes),
    )


def plan_segments(
    curve: Segmented, utility: Floats, budget: int | None, present: Floats | None = None
) -> Ints:
    """Choose the segments of each set that minimize the weighted rate for a budget in bits.

    If the rest of the filters is in a file, ``present`` has the share of present keys among the
    queries of each set, and reads are minimized (`reads`).

    >>> n = np.array([9, 8, 9, 0])
    >>> curve = Segmented(17 * 6 * (n > 0), 6 * (n > 0), n)
    >>> plan_segments(curve, np.array([1.0, 5.0, 2.0, 1.0]), 17 * 16).tolist()
    [1, 2, 2, 0]
    """
    if budget is None:
        return curve.hashes
    lengths, left = np.maximum(curve.bits // np.maximum(curve.hashes, 1), 1), budget
    while True:
        if present is None:
            segments: Ints = optimal(curve, utility, left) // lengths
        else:
            segments = optimal_reads(curve, utility, present, left)[0] // lengths
        over = lay_out(curve, segments, utility).bits - budget
        if over <= 0:
            return segments
        # Rows are whole bytes: plan with fewer bits. Of few sets, most may be padding.
        left = max(0, left - max(over if len(curve.bits) > _MANY else over // 16, 8))


def _bits(lengths: Ints, segments: Ints, classes: npt.NDArray[np.intp]) -> int:
    """Bits of all rows, each in whole bytes."""
    total, start = 0, 0
    for count in classes.tolist():
        own = segments[start : start + count]
        sets = np.searchsorted(-own, -np.arange(int(own[0])), side="left")  # that keep each segment
        total += int(lengths[start]) * 8 * int(np.sum((sets + 7) // 8))
        start += count
    return total
