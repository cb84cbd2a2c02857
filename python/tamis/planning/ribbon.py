"""Ribbon filters and static functions: columns and levels for a rate or a budget.

Each column halves the rate and takes about one bit per key: one slot per key, slightly more for
small sets. Levels have `LOAD` keys per slot and pass on (bump) the keys that do not fit, until at
most `DIRECT` keys are left for the last level (``src/ribbon``).

A share g of the keys can have one column more, so any rate is possible: 2^−r·(1 − g/2) at r + g
columns, at most 0.086 bits per key above log2(1/rate).
"""

import math
from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tamis._checks import one_of, rate_or_budget

Ints = npt.NDArray[np.int64]

MAX_COLUMNS = 32

UNIT = 2**32
"""Shares of the keys are stored as multiples of 1/`UNIT`."""

MIN_SHARE = UNIT // 64
"""The smallest share of a column, and the step to the next coarser size."""

LAYOUTS = ("interleaved", "columns")
"""Order of the bits: all bits of one query together, or one column after the other."""

LOAD = 1.06
"""Keys per slot of a level: with more, fewer slots stay empty, but more keys need a second lookup.
From 1.04 to 1.07 the size hardly differs."""

DIRECT = 4000
"""The largest number of keys of the last level: up to here, more levels save nothing."""

BUCKET = 128
"""Starts that share one code of two bits."""

_BLOCK = 64
WIDE = 256
"""Slots that the equation of a key spans at most."""
# The share of a level's slots that stay empty, besides its last block. It determines how many keys
# the next level has.
_EMPTY = 0.001
# Slots beyond n for n keys, in sets with levels: 0.3·√n ± 0.12·√n in 10³ sets of 4,001 to 10⁶ keys
# and a few of 10⁷. One set in a hundred exceeds the bound that `max_slots` computes from these.
_SPARE, _SPARE_BY_ROOT, _SPARE_SHARE = 40, 0.6, 0.0004
# How often the last level may have grown: more than once for one set in thousands.
_GROWTHS = 1
# How many standard deviations more keys of the last level may have the extra column than their
# share. In sets with levels, the rate may exceed the rate of the share by 0.3/√n, as measured,
# because bumped starts are not spread evenly.
_SIGMAS = 2.0
_RATE_DEVIATION = 0.3


class RibbonSize(NamedTuple):
    """A ribbon's size: columns (r), slots of each level that bumps, and a bound of all slots.

    ``share`` of `UNIT` of the keys have one column more.
    """

    columns: int
    levels: tuple[int, ...]
    slots: int
    layout: str = "interleaved"
    share: int = 0

    @property
    def length(self) -> float:
        """Columns per key, a fraction if only some keys have the last one."""
        return self.columns + self.share / UNIT

    @property
    def bits(self) -> int:
        """An upper bound of the size in bits; most filters are slightly smaller."""
        return code_bits(self.levels) + self.columns * self.slots + self._extra_bits

    @property
    def _extra_bits(self) -> int:
        """Bound the bits of the extra column: blocks of levels, and a system of the last level."""
        if not self.share:
            return 0
        wide = sum(
            _BLOCK * (1 - (-self.share * (slots // _BLOCK - 1) // UNIT)) for slots in self.levels
        )
        last, share = self.slots - sum(self.levels), self.share / UNIT
        return wide + _last_slots(
            math.ceil(share * last + _SIGMAS * math.sqrt(share * (1 - share) * last))
        )

    def rate(self, keys: int) -> float:
        """Predict the rate, which is the same for any number of keys above 0."""
        return column_rate(self.length) if keys else 0.0

    def coarser(self, keys: int) -> Self | None:
        """Return the next coarser size, or None if there is none."""
        whole, share = divmod(self.columns * UNIT + self.share - MIN_SHARE, UNIT)
        return None if whole < 0 or not whole + share else self._with(whole, share)

    def in_whole_columns(self) -> Self:
        """Return the size with one column more for all keys, if some have it."""
        return self._with(self.columns + (self.share > 0), 0)

    def _with(self, columns: int, share: int) -> Self:
        return self._replace(columns=columns, share=share)


def column_rate(columns: float) -> float:
    """Predict the rate of this many columns; a fraction g of a column checks a share g of the keys.

    >>> column_rate(8), column_rate(8.5)
    (0.00390625, 0.0029296875)
    """
    whole = math.floor(columns)
    return 2.0**-whole * (1 - (columns - whole) / 2)


def columns_for(rate: float) -> float:
    """Return the columns that have this rate, not always whole.

    >>> columns_for(2**-8), columns_for(2**-8 * 0.75)
    (8.0, 8.5)
    """
    whole = math.floor(-math.log2(rate))
    return whole + 2 * (1 - rate * 2.0**whole)


def size(
    keys: int,
    *,
    fpr: float | None = None,
    bits_per_key: float | None = None,
    fingerprint_bits: float | None = None,
    layout: str = "interleaved",
) -> RibbonSize:
    """Find the fewest columns with at most this rate, or the most within this budget.

    With ``fingerprint_bits``, the number of columns, only the number of slots is chosen.

    >>> size(1000, fpr=2**-7)
    RibbonSize(columns=7, levels=(), slots=1016, layout='interleaved', share=0)
    >>> s = size(1000, fpr=0.01)
    >>> s.columns, round(s.share / UNIT, 2), s.rate(1000) <= 0.01
    (6, 0.72, True)
    >>> size(1_000_000, bits_per_key=10).levels
    (943360, 54336)
    """
    one_of("layout", layout, LAYOUTS)
    found = levels(keys)
    none = RibbonSize(0, found, max_slots(keys, found), layout)
    if fingerprint_bits is not None:
        return none._with(*_parts(fingerprint_bits))
    fpr, bits_per_key = rate_or_budget(fpr, bits_per_key)
    smallest = none._with(0, MIN_SHARE)
    if fpr is not None:
        if fpr < 2.0**-MAX_COLUMNS:
            raise ValueError(
                f"fpr must be at least 2**-{MAX_COLUMNS} for a ribbon filter, not {fpr}"
            )
        if found and math.log2(fpr) % 1:  # whole columns have an exact rate
            fpr = max(fpr * (1 - _SIGMAS * _RATE_DEVIATION / math.sqrt(keys)), 2.0**-MAX_COLUMNS)
        mixed = max(smallest, none._with(*_parts(columns_for(fpr))), key=lambda size: size.length)
        # For a few keys, a whole column may take less memory than a fraction of it.
        return min(mixed.in_whole_columns(), mixed, key=lambda size: size.bits)
    assert bits_per_key is not None
    budget = math.floor(max(keys, 1) * bits_per_key)
    if smallest.bits > budget:
        needed = math.ceil(100 * smallest.bits / max(keys, 1)) / 100
        raise ValueError(
            f"bits_per_key must be at least {needed:.2f} "
            f"for a ribbon filter of {keys} keys, not {bits_per_key}"
        )
    whole = min((budget - code_bits(found)) // max(none.slots, 1), MAX_COLUMNS)
    if whole == MAX_COLUMNS:
        return none._with(whole, 0)
    fitting = bisect_right(
        range(MIN_SHARE, UNIT), budget, key=lambda share: none._with(whole, share).bits
    )
    return none._with(whole, MIN_SHARE + fitting - 1 if fitting else 0)


def _parts(columns: float) -> tuple[int, int]:
    """Return a number of columns as whole ones, and the share of another, rounded up."""
    return divmod(math.ceil(columns * UNIT), UNIT)


def levels(keys: int) -> tuple[int, ...]:
    """Choose the slots of each level that bumps; the last one passes on at most `DIRECT` keys.

    >>> levels(DIRECT), levels(DIRECT + 1)
    ((), (3712,))
    """
    found = []
    while keys > DIRECT:
        slots = math.floor(keys / LOAD / _BLOCK) * _BLOCK
        found.append(slots)
        keys -= math.floor(slots * (1 - _EMPTY)) - _BLOCK
    return tuple(found)


def code_bits(levels: tuple[int, ...]) -> int:
    """Return the bits of the codes, which tell which keys each level passes on.

    >>> code_bits((943_360, 54_336))
    15588
    """
    return sum(2 * math.ceil((slots - _BLOCK) / BUCKET) for slots in levels)


def max_slots(keys: int, levels: tuple[int, ...]) -> int:
    """Bound the slots of all levels, including the last: the bits of a column.

    >>> max_slots(100, ()), max_slots(10**6, levels(10**6))
    (102, 1001040)
    """
    if not levels:
        return _last_slots(keys)
    spare = math.ceil(_SPARE + _SPARE_BY_ROOT * math.sqrt(keys) + _SPARE_SHARE * keys)
    # The levels of millions of keys have a little more slots than keys.
    return max(keys + spare, sum(levels) + _SPARE)


def _last_slots(keys: int) -> int:
    """Return the maximum number of slots of a last level of this many keys."""
    if not keys:
        return 0
    return keys + 1 + max(keys - WIDE, 0) // 64 + _GROWTHS * (1 + keys // 256)


def column_slots(keys: Ints) -> tuple[Ints, Ints]:
    """Predict the bits of a column and of the codes of many ribbons; some are slightly larger.

    >>> column_slots(np.array([0, 1, 100, 1000, 10**6]))[0]
    array([      0,       2,     101,    1012, 1001040])
    """
    slots = keys + 1 + np.maximum(keys - WIDE, 0) // 64
    codes = np.zeros_like(slots)
    large = np.flatnonzero(keys > DIRECT)
    sizes, which = np.unique(keys[large], return_inverse=True)
    found = [(size, levels(size)) for size in sizes.tolist()]
    codes[large] = np.array([stored_code_bits(each) for _, each in found], np.int64)[which]
    slots[large] = np.array([max_slots(*each) for each in found], np.int64)[which]
    return np.where(keys > 0, slots, 0), codes


def stored_code_bits(levels: tuple[int, ...]) -> int:
    """Return the bits before the columns: whole words per level, whole cache lines in total."""
    words = sum(math.ceil(math.ceil((slots - _BLOCK) / BUCKET) / 32) for slots in levels)
    return 512 * math.ceil(words / 8)


@lru_cache(maxsize=65536)
def function_bits(items: int) -> int:
    """Bits of a static function of one bit per item, which is a ribbon of one column.

    >>> function_bits(1000), function_bits(0)
    (1016, 0)
    """
    return size(items, fingerprint_bits=1).bits if items else 0
