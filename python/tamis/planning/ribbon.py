"""Ribbon filters and static functions: columns and levels for a rate or a budget.

Each column halves the rate and takes about one bit per key: one slot per key, slightly more for
small sets. Levels have `LOAD` keys per slot and pass on (bump) the keys that do not fit, until at
most `DIRECT` keys are left for the last level (``src/ribbon``).
"""

import math
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tamis.planning.arguments import check_rate_or_budget, one_of

Ints = npt.NDArray[np.int64]

MOST_COLUMNS = 32

LAYOUTS = ("interleaved", "columns")
"""Order of the columns: what one query needs together, or one column after the other."""

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
# Slots that stay empty: 0.05 to 0.1 % measured at 10⁴ to 10⁶ keys, and the end of a level.
_EMPTY = 0.001
_MOST_EMPTY = 0.003
# How often the last level may have grown: more than once for one set in thousands.
_GROWTHS = 1


class Size(NamedTuple):
    """A ribbon's size: columns (r), slots of each level that bumps, and a bound of all slots."""

    columns: int
    levels: tuple[int, ...]
    slots: int
    layout: str = "interleaved"

    @property
    def bits(self) -> int:
        """An upper bound of the size in bits; most filters are slightly smaller."""
        return code_bits(self.levels) + self.columns * self.slots

    def rate(self, keys: int) -> float:
        """Predict the rate, which is the same for any number of keys above 0."""
        return column_rate(self.columns) if keys else 0.0

    def coarser(self, keys: int) -> Self | None:
        """Return the size with one column less, or None if it has one."""
        return None if self.columns == 1 else self._replace(columns=self.columns - 1)


def column_rate(columns: float, inside: float = 1.0) -> float:
    """Predict the rate of this many columns; a part of one checks the fraction ``inside``.

    >>> column_rate(8), column_rate(8.5, inside=0.5)
    (0.00390625, 0.0029296875)
    """
    whole = math.floor(columns)
    return 2.0**-whole * (1 - inside / 2 if columns > whole else 1)


def size(
    keys: int,
    *,
    fpr: float | None = None,
    bits_per_key: float | None = None,
    fingerprint_bits: int | None = None,
    layout: str = "interleaved",
) -> Size:
    """Find the fewest columns with at most this rate, or the most within this budget.

    With ``fingerprint_bits``, the number of columns, only the number of slots is chosen.

    >>> size(1000, fpr=0.01)
    Size(columns=7, levels=(), slots=1016, layout='interleaved')
    >>> size(1_000_000, bits_per_key=10).levels
    (943360, 54336)
    """
    one_of("layout", layout, LAYOUTS)
    found = levels(keys)
    one = Size(1, found, most_slots(keys, found), layout)
    if fingerprint_bits is not None:
        return one._replace(columns=fingerprint_bits)
    check_rate_or_budget(fpr, bits_per_key)
    if fpr is not None:
        columns = max(1, math.ceil(-math.log2(fpr)))
        if columns > MOST_COLUMNS:
            raise ValueError(
                f"fpr must be at least 2**-{MOST_COLUMNS} for a ribbon filter, not {fpr}"
            )
        return one._replace(columns=columns)
    assert bits_per_key is not None
    budget = math.floor(max(keys, 1) * bits_per_key)
    columns = (budget - code_bits(found)) // max(one.slots, 1)
    if columns < 1:
        raise ValueError(
            f"bits_per_key must be at least {one.bits / max(keys, 1):.2f} for a ribbon filter of "
            f"{keys} keys, not {bits_per_key}"
        )
    return one._replace(columns=min(columns, MOST_COLUMNS))


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


def most_slots(keys: int, levels: tuple[int, ...]) -> int:
    """Bound the slots of all levels, including the last: the bits of a column.

    >>> most_slots(100, ()), most_slots(10**6, levels(10**6))
    (102, 1003226)
    """
    last = keys
    for slots in levels:
        last -= math.floor(slots * (1 - _MOST_EMPTY)) - _BLOCK
    last = max(last, 0)
    if last:
        last += 1 + max(last - WIDE, 0) // 64 + _GROWTHS * (1 + last // 256)
    return sum(levels) + last


def column_slots(keys: Ints) -> tuple[Ints, Ints]:
    """Predict the bits of a column and of the codes of many ribbons; some are slightly larger.

    >>> column_slots(np.array([0, 1, 100, 1000, 10**6]))[0]
    array([      0,       2,     101,    1012, 1003226])
    """
    slots = keys + 1 + np.maximum(keys - WIDE, 0) // 64
    codes = np.zeros_like(slots)
    large = np.flatnonzero(keys > DIRECT)
    sizes, which = np.unique(keys[large], return_inverse=True)
    found = [(size, levels(size)) for size in sizes.tolist()]
    codes[large] = np.array([stored_code_bits(each) for _, each in found], np.int64)[which]
    slots[large] = np.array([most_slots(*each) for each in found], np.int64)[which]
    return np.where(keys > 0, slots, 0), codes


def stored_code_bits(levels: tuple[int, ...]) -> int:
    """Return the bits before the columns: whole words per level, whole cache lines in total."""
    words = sum(math.ceil(math.ceil((slots - _BLOCK) / BUCKET) / 32) for slots in levels)
    return 512 * math.ceil(words / 8)
