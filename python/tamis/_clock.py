"""The clock for leases, deadlines, rebuild delays and rate limits."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

from tamis import _native

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Return seconds on a clock that never steps.

    On Linux it includes the time that the machine is suspended. On other systems it may not, and a
    machine that wakes up may rely on a lease that has expired.
    """
    return time.clock_gettime(_CLOCK)


def is_native() -> bool:
    """Return whether `now` is the clock of native deadlines.

    It is on Linux, unless a test has replaced it.
    """
    return abs(_native.now() - now()) < 1.0


@cache
def clock_id() -> str | None:
    """Return an identifier of the clock of `now`, or `None` if there is none.

    On Linux it names the boot and the time namespace: only processes that agree on both may compare
    the clock's values.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return None
