"""What a question costs: durations as text, and the time that a filter takes to answer.

The times are those that ``benches/checks.py`` printed on one machine (two virtual cores of an AMD
EPYC, one thread, batches of integers, hashing included). On another machine their ratios are what
stays; ``check_cost`` of `tamis.advise` scales them all.
"""

import math
import re
from numbers import Real
from typing import NamedTuple

import numpy as np

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
"""What a duration may be given in."""

SIZES = (10_000, 1_000_000)
"""Keys of the filters that were timed: in the cache of a core, and out of it."""


class Check(NamedTuple):
    """Nanoseconds of a question for an absent and for a present key, at each of `SIZES`."""

    absent: tuple[float, float]
    present: tuple[float, float]


CHECKS = {
    "bloom, blocked": Check((7, 15), (7, 10)),
    "bloom, standard": Check((23, 43), (20, 37)),
    "cuckoo": Check((12, 27), (11, 17)),
    "quotient": Check((18, 38), (27, 32)),
    "fuse, 3-wise": Check((8, 15), (8, 11)),
    "fuse, 4-wise": Check((9, 20), (9, 20)),
    "ribbon": Check((18, 26), (27, 22)),
    "telescoping": Check((19, 38), (20, 24)),
    "adaptive cuckoo": Check((37, 53), (33, 37)),
    "windowed": Check((47, 112), (36, 52)),
    "stable": Check((14, 35), (22, 45)),
}
"""By kind of filter; the least of several runs of ``benches/checks.py``."""

SCORE_PER_BYTE, SCORE_PER_COLUMN = 17e-9, 8e-9
"""Seconds that a linear model takes to score a key, by its text or by its row of a table; from
``benches/checks.py``."""


def check_seconds(kind: str, keys: float, present: bool, scale: float = 1.0) -> float:
    """Tell the time of one question, between the sizes that were timed by the keys' logarithm.

    >>> f"{check_seconds('bloom, blocked', 10**4, present=False) * 1e9:.0f} ns"
    '7 ns'
    """
    times = CHECKS[kind].present if present else CHECKS[kind].absent
    nanoseconds = np.interp(math.log(max(keys, 1)), np.log(SIZES), times)
    return scale * 1e-9 * float(nanoseconds)


def duration(name: str, value: float | str) -> float:
    """Read a duration: seconds, or a number with its unit.

    >>> duration("miss_cost", "1ms"), duration("miss_cost", 0.5)
    (0.001, 0.5)
    """
    wrong = (
        f"{name} is {value!r}; seconds, or a number with one of {', '.join(UNITS)}, such as "
        '"1ms", are wanted'
    )
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9.eE+-]+)\s*(ns|us|µs|ms|s)\s*", value)
        try:
            seconds = float(match[1]) * UNITS[match[2]] if match else math.nan
        except ValueError:
            seconds = math.nan
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(wrong)
    else:
        seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError(wrong)
    return seconds


def told(seconds: float) -> str:
    """Write a duration with three digits and the unit that suits it.

    >>> told(0.001), told(2.5e-8), told(0)
    ('1 ms', '25 ns', '0 ns')
    """
    for unit in ("s", "ms", "µs"):
        if seconds >= UNITS[unit]:
            return f"{seconds / UNITS[unit]:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
