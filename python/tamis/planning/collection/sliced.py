"""Bit-sliced filters: their size classes, their segments in memory, and when to use them.

A filter is a segmented Bloom filter. Sets with about as many keys form a class, whose segments have
one length, so that they can be stored by rows (`src/collection/sliced/`). How many segments each
set keeps is the problem of `tamis.planning.collection` in whole segments. Within a class the sets
that keep most come first, so that each segment is kept by the first sets.

The alternative is separate filters: ribbons, or segmented Bloom filters of few keys. A lookup then
probes every set. In bit-sliced filters, one word of memory has the bits of 64 sets, but halving the
rate takes 1.44 bits per key, and 1.02 in a ribbon. A lookup costs

    sets · (time of a probe + rate · cost of a false positive)

with the rate that each kind has within the budget. `choose_kind` takes the lower cost: ribbons for
few or large sets, or where false positives are expensive; bit-sliced filters for many small sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis._checks import check_number
from tamis._format import format_duration, format_rate
from tamis.planning.collection.allocation import best_curves, weighted_rate
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

_TRIALS = 16
"""Maximum number of plans to find the padding of rows; of few sets, most bits may be padding."""

_MAX_FILL = 4096
"""Maximum number of segments in all that are tried one by one for the rest of a budget."""


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
    fpr = check_number("fpr", fpr, "a rate from 2**-32 to below 1", minimum=2.0**-32, below=1)
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
    [2, 2, 2, 0]
    """
    if budget is None:
        return curve.hashes
    lengths = np.maximum(curve.bits // np.maximum(curve.hashes, 1), 1)
    ids = _by_gain(curve, utility, lengths) if present is None else np.zeros(0, np.int64)
    ends = np.cumsum(lengths[ids])

    def plan(bits: int) -> Ints:
        if present is not None:
            return optimal_reads(curve, utility, present, bits)[0] // lengths
        within = int(np.searchsorted(ends, bits, side="right"))
        return np.bincount(ids[:within], minlength=len(lengths))

    # Rows are whole bytes: search for the bits without padding that fill the budget with it.
    best, fits, exceeds, bits = np.zeros(len(lengths), np.int64), 0, budget + 1, budget
    for _ in range(_TRIALS):
        segments = plan(bits)
        padded = lay_out(curve, segments, utility).bits
        if padded <= budget:
            best, fits = segments, bits
        else:
            exceeds = bits
        if exceeds - fits < 2 or 0.999 * budget <= padded <= budget:
            break
        bits += budget - padded  # as if the padding stayed the same
        if not fits < bits < exceeds:
            bits = (fits + exceeds) // 2
    if present is not None or len(ids) > _MAX_FILL:
        return best  # of many sets, the padding is a small part
    return _fill(best, ids, lengths, curve.keys > 0, budget)


def _fill(
    segments: Ints, ids: Ints, lengths: Ints, used: npt.NDArray[np.bool_], budget: int
) -> Ints:
    """Add segments, by gain, that fit into the padding or into the rest of the budget.

    Rows are padded to bytes: only every eighth set adds bytes to the rows of a segment.
    """
    rows = {}  # by the length of a segment, how many sets keep each segment
    for length in np.unique(lengths[used]).tolist():
        kept = np.sort(segments[used & (lengths == length)])
        rows[length] = (len(kept) - np.searchsorted(kept, np.arange(65), side="right")).tolist()
    row_bytes = (length * ((sets + 7) // 8) for length, own in rows.items() for sets in own)
    left = budget - 8 * sum(row_bytes)
    segments, first = segments.copy(), int(segments.sum())
    full: set[int] = set()
    for each in ids[first:].tolist():
        length, number = int(lengths[each]), int(segments[each])
        cost = 0 if rows[length][number] % 8 else 8 * length
        if each in full or cost > left:
            full.add(each)  # its further segments would leave a gap
            continue
        segments[each] += 1
        rows[length][number] += 1
        left -= cost
    return segments


def _by_gain(curve: Segmented, utility: Floats, lengths: Ints) -> Ints:
    """Return the set of each segment, by gain per bit: utility·w^j·(1 − w)/length of segment j."""
    used = np.flatnonzero((utility > 0) & (curve.keys > 0))
    zeros = (1 - 1 / lengths[used]) ** curve.keys[used]
    with np.errstate(divide="ignore"):
        first, step = np.log(utility[used] * zeros / lengths[used]), np.log1p(-zeros)
    which = np.repeat(np.arange(len(used)), curve.hashes[used])
    starts = np.cumsum(curve.hashes[used]) - curve.hashes[used]
    number = np.arange(len(which)) - starts[which]
    gain = first[which] + number * step[which]
    return used[which[np.argsort(-gain, kind="stable")]]


def _bits(lengths: Ints, segments: Ints, classes: npt.NDArray[np.intp]) -> int:
    """Bits of all rows, each in whole bytes."""
    total, start = 0, 0
    for count in classes.tolist():
        own = segments[start : start + count]
        sets = np.searchsorted(-own, -np.arange(int(own[0])), side="left")  # that keep each segment
        total += int(lengths[start]) * 8 * int(np.sum((sets + 7) // 8))
        start += count
    return total


PROBE, SLICED_PROBE, SLICED_LOOKUP = 40e-9, 0.5e-9, 1.5e-6
"""Seconds of a lookup per set, separate and bit-sliced, and of any bit-sliced lookup; from
``benches/collection.py``."""

OVERHEAD, SLICED_OVERHEAD = 14, 10
"""Bytes per set in addition to its bits, estimated."""

TAIL_READ = 5e-6
"""Seconds to check the rest of a filter in a file that the system has in memory."""


class KindChoice(NamedTuple):
    """A kind for `tamis.Collection.build`, and a sentence about the choice."""

    kind: Literal["auto", "sliced"]
    reason: str


def choose_kind(
    keys: Ints, utility: Floats, budget: int, *, fpr: float = 1e-4, miss_cost: float = 1e-3
) -> KindChoice:
    """Choose between kinds "auto" (separate) and "sliced" for a budget in bytes.

    ``miss_cost`` is the cost of a false positive, in seconds.

    >>> keys, equal = np.full(50_000, 40), np.ones(50_000)
    >>> choose_kind(keys, equal, 6_000_000).kind, choose_kind(keys, equal, 2_000_000).kind
    ('sliced', 'auto')
    >>> choose_kind(keys[:20], equal[:20], 2400).reason
    'ribbons, since 20 sets are fewer than the 64 that one word of a row covers'
    """
    fpr = check_number("fpr", fpr, "a rate from 2**-32 to below 1", minimum=2.0**-32, below=1)
    sets = int(np.count_nonzero(keys))
    if sets < MIN_SETS:
        few = f"{sets} sets are fewer than the {MIN_SETS} that one word of a row covers"
        return KindChoice("auto", f"ribbons, since {few}")
    bits = [max(0, 8 * (budget - each * len(keys))) for each in (OVERHEAD, SLICED_OVERHEAD)]
    _, curve = best_curves(keys, utility, fpr, bits[0])
    separate = weighted_rate(utility, curve.rate(optimal(curve, utility, bits[0])))
    by_rows = _sliced_rate(keys, utility, bits[1], fpr)
    costs = [
        sets * (PROBE + separate * miss_cost),
        SLICED_LOOKUP + sets * (SLICED_PROBE + by_rows * miss_cost),
    ]
    both = (
        f"a lookup in {sets:,} sets takes about {format_duration(sets * PROBE)} at a rate of "
        f"{format_rate(separate)} one by one, and "
        f"{format_duration(SLICED_LOOKUP + sets * SLICED_PROBE)} at a rate of "
        f"{format_rate(by_rows)} by rows"
    )
    cost = f"in total if a false positive costs {format_duration(miss_cost)}"
    if costs[1] < costs[0]:
        return KindChoice("sliced", f"filters by rows: {both}, which costs less {cost}")
    return KindChoice("auto", f"ribbons: {both}, which costs more {cost}")


def _sliced_rate(keys: Ints, utility: Floats, bits: int, fpr: float) -> float:
    numbers, which = np.unique(keys, return_inverse=True)
    sizes = np.array([filter_size(int(number), fpr) for number in numbers], np.int64)[which]
    sizes *= (keys > 0)[:, None]
    curve = Segmented(sizes[:, 0] * sizes[:, 1], sizes[:, 1], keys)
    segments = plan_segments(curve, utility, bits)
    return weighted_rate(utility, curve.rate(segments * sizes[:, 0]))
