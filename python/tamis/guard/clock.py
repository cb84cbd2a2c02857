"""The clock for leases, deadlines, rebuild delays and rate limits."""

from __future__ import annotations

import time

from tamis import _native

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Return seconds on a clock that never jumps and, on Linux, keeps running during suspend."""
    return time.clock_gettime(_CLOCK)


def is_native() -> bool:
    """Return whether `now` is the clock that native deadlines are compared with.

    It is on Linux, unless a test replaced it.
    """
    return abs(_native.now() - now()) < 1.0
