"""Leases, also for stores without a clock that can be trusted.

A guard relies on its lease until the start of the call that granted it plus the lease's length, by
a clock that never steps and keeps running while the machine is suspended. No store may grant the
lease to another guard before that.

The processes of one machine share such a clock, so a lease can be compared with it. A server's
clock is not one: if it is set, a lease that is compared with it ends early, or never. Where guards
may run on several machines, a guard that wants the lease therefore *watches* it: every grant and
renewal changes the record, and a lease whose record has not changed for its length, by the clock of
the watching guard, has expired. Watching starts after the grant, so it ends after the holder has
stopped relying on the lease.
"""

from __future__ import annotations

from tamis._clock import now

_DRIFT = 1.01
"""Clocks of two machines may run at slightly different speeds; NTP corrects by up to 0.05 %."""


class WatchedLease:
    """How long a lease's record has been seen unchanged."""

    def __init__(self) -> None:
        self._record: object = None
        self._since = 0.0

    def is_over(self, record: object, seconds: float) -> bool:
        """Return whether this record, just read, has been seen unchanged for this many seconds."""
        at = now()
        if record != self._record:
            self._record, self._since = record, at
        return at - self._since >= seconds * _DRIFT


class LocalLease:
    """The lease of a store that only one process uses."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self._until = 0.0

    def take(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease; return `False` if another owner has it."""
        at = now()
        if self.holder not in (None, owner) and at < self._until:
            return False
        self.holder, self._until = owner, at + seconds
        return True

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        if self.holder == owner:
            self.holder = None
