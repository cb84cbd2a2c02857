"""The clock for leases, rebuild delays and rate limits."""

from __future__ import annotations

import time


def now() -> float:
    """Return seconds on a clock that never jumps and, on Linux, keeps running during suspend."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
