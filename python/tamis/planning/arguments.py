"""Checks of arguments that several plans share."""

import os
from collections.abc import Iterable
from numbers import Integral, Real
from typing import SupportsIndex

MOST_BITS_PER_KEY = 4096
"""The largest budget accepted: far more than any filter can use."""


def check_rate_or_budget(fpr: float | None, bits_per_key: float | None) -> None:
    """Check that exactly one is given: a rate between 0 and 1, or a positive budget."""
    if (fpr is None) == (bits_per_key is None):
        raise ValueError("pass exactly one of fpr or bits_per_key")
    for name, value in (("fpr", fpr), ("bits_per_key", bits_per_key)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise TypeError(f"{name} must be a number, not {value!r} ({type(value).__name__})")
    if fpr is not None and not 0 < fpr < 1:
        raise ValueError(f"fpr must be between 0 and 1, such as 0.01, not {fpr}")
    if bits_per_key is not None and not 0 < bits_per_key <= MOST_BITS_PER_KEY:
        raise ValueError(
            f"bits_per_key must be above 0 and at most {MOST_BITS_PER_KEY}, not {bits_per_key}"
        )


def check_workload(workload: object, *, optional: bool = True) -> None:
    """Refuse anything but a `tamis.Workload`, or None, such as the queries themselves."""
    if not (optional and workload is None) and not hasattr(workload, "curve"):
        raise TypeError(
            "workload must be a tamis.Workload, such as Workload.from_queries(log, keys=keys), "
            f"not {type(workload).__name__}"
        )


def whole(name: str, value: SupportsIndex, most: int, least: int = 0) -> int:
    """Return an argument as an int in a range; NumPy integers are accepted, bools are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {value!r} ({type(value).__name__})")
    number = value.__index__()
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {number}")
    return number


def thread_count(threads: int | None) -> int:
    """Return how many threads to start: as many as given, or one per core for None or 0."""
    return whole("threads", threads or 0, 4096) or os.cpu_count() or 1


MOST_KEYS = 2**48 - 1
"""The largest capacity of a filter."""


def one_of(name: str, value: object, choices: Iterable[object]) -> None:
    """Check that a value is one of the choices.

    >>> one_of("layout", "bloked", ["blocked", "standard"])
    Traceback (most recent call last):
    ...
    ValueError: layout must be 'blocked' or 'standard', not 'bloked'
    """
    listed = list(choices)
    if value not in listed:
        *others, last = map(repr, listed)
        accepted = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(f"{name} must be {accepted}, not {value!r}")


UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
"""Units of a memory budget, in bytes."""


def parse_budget(budget: int | str, name: str = "budget") -> int:
    """Read a memory budget: bytes, or a number with a unit in powers of ten.

    >>> parse_budget("64MB"), parse_budget(1000)
    (64000000, 1000)
    """
    wrong = f"{name} must be bytes or a size such as '64MB' ({', '.join(UNITS)}), not {budget!r}"
    if isinstance(budget, str):
        text = budget.strip()
        for unit in sorted(UNITS, key=len, reverse=True):
            if text.endswith(unit):
                try:
                    size = float(text[: -len(unit)]) * UNITS[unit]
                except ValueError:
                    break
                if 0 <= size < 2**60:
                    return int(size)
                break
        raise ValueError(wrong)
    if isinstance(budget, bool) or not isinstance(budget, Integral):
        raise TypeError(wrong)
    if budget < 0:
        raise ValueError(wrong)
    return int(budget)
