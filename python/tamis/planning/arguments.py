"""Checks of the arguments that all plans share."""

import math


def check_rate_or_budget(fpr: float | None, bits_per_key: float | None) -> None:
    """Refuse anything but exactly one of a rate between 0 and 1 and a positive budget."""
    if (fpr is None) == (bits_per_key is None):
        given = "neither" if fpr is None else "both"
        raise ValueError(f"{given} of fpr and bits_per_key given; exactly one is wanted")
    if fpr is not None and not 0 < fpr < 1:
        raise ValueError(f"fpr is {fpr}; a rate between 0 and 1 is wanted, such as 0.01")
    if bits_per_key is not None and not (0 < bits_per_key < math.inf):
        raise ValueError(f"bits_per_key is {bits_per_key}; a positive number is wanted")


def check_capacity(capacity: int) -> None:
    """Refuse anything but a number of keys that a filter can be made for."""
    if isinstance(capacity, bool) or not isinstance(capacity, int):
        kind = type(capacity).__name__
        raise TypeError(f"capacity is {capacity!r} (of type {kind}); an int is wanted")
    if not 0 <= capacity < 2**48:
        raise ValueError(f"capacity is {capacity}; from 0 to 2**48 - 1 keys are possible")
