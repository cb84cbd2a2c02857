"""Costs of a query: durations as text, and the time that a filter takes.

The times of each kind are in `tamis.planning.kinds`, as ``benches/checks.py`` printed them on one
machine (two virtual cores of an AMD EPYC, one thread, batches of integers, including hashing). On
another machine, only their ratios are meaningful; ``check_cost`` of `tamis.advise` scales them.
"""

import math
import re
from typing import NamedTuple

import numpy as np

from tamis._checks import check_number

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
"""Units of a duration, in seconds."""

SIZES = (10_000, 1_000_000)
"""Keys of the filters that were timed: one fits in the cache of a core, one does not."""


class Check(NamedTuple):
    """Nanoseconds of a query for an absent and for a present key, at each of `SIZES`."""

    absent: tuple[float, float]
    present: tuple[float, float]


SCORE_PER_BYTE, SCORE_PER_COLUMN = 17e-9, 8e-9
"""Seconds that a linear model takes to score a key, by its text or by its row of a table; from
``benches/checks.py``."""


def check_seconds(check: Check, keys: float, present: bool, scale: float = 1.0) -> float:
    """Interpolate the time of one query between the sizes that were timed, by log of the keys.

    >>> f"{check_seconds(Check((7, 15), (7, 10)), 10**5, present=False) * 1e9:.0f} ns"
    '11 ns'
    """
    times = check.present if present else check.absent
    nanoseconds = np.interp(math.log(max(keys, 1)), np.log(SIZES), times)
    return scale * 1e-9 * float(nanoseconds)


def duration(name: str, value: float | str) -> float:
    """Read a duration: seconds, or a number with its unit.

    >>> duration("miss_cost", "1ms"), duration("miss_cost", 0.5)
    (0.001, 0.5)
    """
    what = f"seconds, or a number with a unit ({', '.join(UNITS)}) such as '1ms'"
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9.eE+-]+)\s*(ns|us|µs|ms|s)\s*", value)
        try:
            seconds = float(match[1]) * UNITS[match[2]] if match else math.nan
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{name} must be {what}, not {value!r}")
        return seconds
    return check_number(name, value, what, least=0)
