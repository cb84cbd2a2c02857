"""Checks of the arguments that all plans share."""

from numbers import Integral, Real
from typing import SupportsIndex

MOST_BITS_PER_KEY = 4096
"""A budget beyond any use."""


def check_rate_or_budget(fpr: float | None, bits_per_key: float | None) -> None:
    """Refuse anything but exactly one of a rate between 0 and 1 and a positive budget."""
    if (fpr is None) == (bits_per_key is None):
        given = "neither" if fpr is None else "both"
        raise ValueError(f"{given} of fpr and bits_per_key given; exactly one is wanted")
    for name, value in (("fpr", fpr), ("bits_per_key", bits_per_key)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            kind = type(value).__name__
            raise TypeError(f"{name} is {value!r} (of type {kind}); a number is wanted")
    if fpr is not None and not 0 < fpr < 1:
        raise ValueError(f"fpr is {fpr}; a rate between 0 and 1 is wanted, such as 0.01")
    if bits_per_key is not None and not 0 < bits_per_key <= MOST_BITS_PER_KEY:
        raise ValueError(
            f"bits_per_key is {bits_per_key}; a number from 0 to {MOST_BITS_PER_KEY} is wanted"
        )


def whole(name: str, value: SupportsIndex, most: int, least: int = 0) -> int:
    """Return an argument as an int of a range; a NumPy integer will do, a bool not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        kind = type(value).__name__
        raise TypeError(f"{name} is {value!r} (of type {kind}); an int is wanted")
    number = value.__index__()
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}; from {least} to {most} is possible")
    return number


MOST_KEYS = 2**48 - 1
"""The most keys that a filter can be made for."""

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
