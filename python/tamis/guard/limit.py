"""The guard's clock, and a limit on what it does per second."""

from __future__ import annotations

import threading
import time


class Limit:
    """At most so many per second, with a second's worth in hand."""

    def __init__(self, per_second: float | None) -> None:
        self._rate = per_second
        self._lock = threading.Lock()
        self._left = max(per_second or 0.0, 1.0 if per_second else 0.0)
        self._last = now()

    def take(self, wanted: int) -> int:
        """Return how many of those wanted are allowed now."""
        if self._rate is None:
            return wanted
        with self._lock:
            at = now()
            most = max(self._rate, 1.0) if self._rate else 0.0
            self._left = min(most, self._left + self._rate * (at - self._last))
            self._last = at
            taken = min(wanted, int(self._left))
            self._left -= taken
            return taken


def now() -> float:
    """Return the time for leases: a clock that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
