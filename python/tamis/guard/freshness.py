"""Until when the filter's "no" counts without a change check of the store.

There are two deadlines, and the later one counts: the end of the lease, during which nobody else
writes, and ``max_staleness`` after the filter was last level with the store. The gate compares it
with the time in native code.
"""

from __future__ import annotations

import math
import threading

from tamis._clock import is_native, now
from tamis._native import Gate

_RETRY = 0.5
"""Seconds until a lease that could not be renewed is renewed again, while it lasts."""


class Freshness:
    """Whether the filter is trusted and level with its store, and until when that is known."""

    def __init__(self, *, shared: bool, lease: float, max_staleness: float) -> None:
        self.gate: Gate | None = None
        """The gate that gets each deadline; `None` until there is a filter."""
        self.trusted = False
        self.behind = False
        """Whether the index may have keys that the filter does not have yet."""
        self.granted_until = 0.0
        """As ``lease_until``, but from the grant on, when the filter may still be behind."""
        self.renew_at = 0.0
        """When half of the lease is over."""
        self.lock = threading.Lock()
        """Held, for an instant, while deadlines change."""
        self._shared, self._seconds, self._max_staleness = shared, lease, max_staleness
        self._lease_until = 0.0
        self._level_at = -math.inf
        self._level_with: object = None

    def holds_lease(self) -> bool:
        """Return whether the guard holds the lease."""
        return now() < self._lease_until

    @property
    def lease_until(self) -> float:
        """When the lease expires; 0 if the guard does not hold it."""
        return self._lease_until

    @lease_until.setter
    def lease_until(self, until: float) -> None:
        with self.lock:
            self._lease_until = until
            self.renew_at = until - self._seconds / 2 if until else 0.0
            self.set_deadline()

    def delay_renewal(self) -> None:
        """Answer by the lease for a little longer, while it is renewed in the background."""
        with self.lock:
            self.renew_at = min(now() + _RETRY, self._lease_until)
            self.set_deadline()

    def mark_level(self, at: float, token: object, epoch: str) -> None:
        """Record that the filter had all keys of the store at a time.

        ``token`` is the store's change token then, ``epoch`` the filter's epoch.
        """
        with self.lock:
            self._level_with = token, epoch
            self._level_at = max(at, self._level_at)
            self.set_deadline()

    def was_level_with(self, token: object, epoch: str) -> bool:
        """Return whether the filter of this epoch was level when the store had this token."""
        # The store may come back with the token of a state before writes of this guard.
        return (token, epoch) == self._level_with

    def distrust(self) -> bool:
        """Close the gate until the filter is trusted again; return whether it was."""
        with self.lock:
            before, self.trusted = self.trusted, False
            self.set_deadline()
        return before

    def forget_deadlines(self) -> None:
        """Require a change check before the next "no"."""
        with self.lock:
            self._level_at, self.renew_at = -math.inf, 0.0
            self.set_deadline()

    def set_deadline(self) -> None:
        """Set the gate's deadline; the lock is held."""
        if self.gate is None:
            return
        if not self.trusted:
            self.gate.close()
            return
        until = self._level_at + self._max_staleness if self._max_staleness else 0.0
        if not self._shared and not self.behind:
            until = max(until, self.renew_at)
        self.gate.open_until(max(until, 0.0) if is_native() else 0.0)
