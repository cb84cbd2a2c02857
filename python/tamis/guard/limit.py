"""A limit on how many adaptations a guard makes per second."""

from __future__ import annotations

import threading

from tamis._clock import now


class Limit:
    """A token bucket: at most ``per_second`` on average, in bursts of up to one second's worth."""

    def __init__(self, per_second: float | None) -> None:
        """Start with a full bucket; `None` means no limit."""
        self._rate = per_second
        self._lock = threading.Lock()
        self._left = max(per_second or 0.0, 1.0 if per_second else 0.0)
        self._last = now()

    def take(self, wanted: int) -> int:
        """Return how many of ``wanted`` are allowed now, and take them from the bucket."""
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
