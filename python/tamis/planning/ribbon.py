"""Ribbon filters and static functions: columns and levels for a rate or a budget.

Each column halves the rate and costs about one bit per key: a slot for each key, a little more
in small sets. Levels that bump have `LOAD` keys per slot and pass on what does not fit, until
at most `DIRECT` keys are left for the last level (``src/ribbon``).
"""

import math
from typing import NamedTuple

from tamis.planning.arguments import check_rate_or_budget

MOST_COLUMNS = 32

LOAD = 1.06
"""Keys that come to a level per slot of it: with more, next to none of its slots stay empty, but
more keys need a second look. From 1.04 to 1.07 the size hardly differs."""

DIRECT = 4000
"""Keys that the last level takes at once: up to here it is as small as any other way."""

BUCKET = 128
"""Starts that share one code of two bits."""

_BLOCK = 64
_WIDE = 256
# Slots that stay empty: 0.05 to 0.1 % measured at 10⁴ to 10⁶ keys, and the end of a level.
_EMPTY = 0.001
_MOST_EMPTY = 0.003
# How often the room of the last level may have grown: more than once for one set in thousands.
_GROWTHS = 1


class Size(NamedTuple):
    """A ribbon's size: its columns (r), and the slots of each level that bumps."""

    columns: int
    levels: tuple[int, ...]


def rate(columns: float, inside: float = 1.0) -> float:
    """Predict the rate of so many columns; a fraction of one serves the keys ``inside`` it.

    >>> rate(8), rate(8.5, inside=0.5)
    (0.00390625, 0.0029296875)
    """
    whole = math.floor(columns)
    return 2.0**-whole * (1 - inside / 2 if columns > whole else 1)


def size(keys: int, *, fpr: float | None = None, bits_per_key: float | None = None) -> Size:
    """Find the fewest columns with at most this rate, or the most within this budget.

    >>> size(1000, fpr=0.01)
    Size(columns=7, levels=())
    >>> size(1_000_000, bits_per_key=10)
    Size(columns=9, levels=(943360, 54336))
    """
    check_rate_or_budget(fpr, bits_per_key)
    found = levels(keys)
    if fpr is not None:
        columns = max(1, math.ceil(-math.log2(fpr)))
        if columns > MOST_COLUMNS:
            raise ValueError(f"fpr is {fpr}; a ribbon of {MOST_COLUMNS} columns reaches 2**-32")
        return Size(columns, found)
    assert bits_per_key is not None
    budget = math.floor(max(keys, 1) * bits_per_key)
    codes = most_bits(keys, Size(0, found))
    columns = (budget - codes) // max(most_bits(keys, Size(1, found)) - codes, 1)
    if columns < 1:
        least = most_bits(keys, Size(1, found)) / max(keys, 1)
        raise ValueError(
            f"bits_per_key is {bits_per_key}; a ribbon of {keys} keys needs at least {least:.2f}"
        )
    return Size(min(columns, MOST_COLUMNS), found)


def levels(keys: int) -> tuple[int, ...]:
    """Choose the slots of each level that bumps; what the last one passes on is at most `DIRECT`.

    >>> levels(DIRECT), levels(DIRECT + 1)
    ((), (3712,))
    """
    found = []
    while keys > DIRECT:
        slots = math.floor(keys / LOAD / _BLOCK) * _BLOCK
        found.append(slots)
        keys -= math.floor(slots * (1 - _EMPTY)) - _BLOCK
    return tuple(found)


def most_bits(keys: int, size: Size) -> int:
    """Bound the size of a filter of so many keys, which chance makes a little smaller.

    >>> most_bits(100, Size(8, ())), most_bits(10**6, Size(8, levels(10**6)))
    (816, 8041396)
    """
    codes = sum(2 * math.ceil((slots - _BLOCK) / BUCKET) for slots in size.levels)
    return codes + size.columns * most_slots(keys, size.levels)


def most_slots(keys: int, levels: tuple[int, ...]) -> int:
    """Bound the slots of all levels, the last included: the bits of a column.

    >>> most_slots(100, ()), most_slots(10**6, levels(10**6))
    (102, 1003226)
    """
    last = keys
    for slots in levels:
        last -= math.floor(slots * (1 - _MOST_EMPTY)) - _BLOCK
    last = max(last, 0)
    if last:
        last += 1 + max(last - _WIDE, 0) // 64 + _GROWTHS * (1 + last // 256)
    return sum(levels) + last
