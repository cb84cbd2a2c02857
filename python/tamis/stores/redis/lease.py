"""The lease of `tamis.stores.Redis`.

It is watched, not compared with a clock (`stores/lease.py`), and a record of it counts only in the
run of the server that wrote it. Redis may lose the record: keys are flushed or evicted, and a
server that is restarted comes back empty or in an earlier state. Without a record of this run the
lease is free only if no guard can rely on one. Three things show that:

- the record that is there instead was watched for the longest lease that is known, or
- this store itself holds the lease, by its own clock, or
- the server has run for longer than a lease, and has granted none for this store in this run. A
  grant leaves a mark outside the database: a loaded script, which only a restart or
  ``SCRIPT FLUSH`` removes, no flush of keys and no eviction.

The server measures its run time by its wall clock, which may step forward just after a restart. So
the time for which its main thread has been computing must be as long: an idle server needs an hour
or two for ten seconds of that. Otherwise the guard that wants the lease watches.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from tamis._clock import now
from tamis.stores.lease import WatchedLease
from tamis.stores.redis import scripts


class Lease:
    """The lease of one store, as one client sees it."""

    def __init__(
        self,
        call: Callable[[str, list[bytes], Sequence[Any]], Any],
        client: Any,
        record: bytes,
        name: str,
        grace: float | None,
    ) -> None:
        """``call`` runs a script, ``record`` is the Redis key of the record."""
        self._call, self._client, self._record, self._grace = call, client, record, grace
        self._mark = f"return 'tamis lease {name.encode().hex()}'"
        self._watched = WatchedLease()
        self.refusal = ""
        """Why the lease was not granted last."""
        self.forget()

    def forget(self) -> None:
        """Forget that this client holds the lease."""
        self._granted: tuple[str, float, float] = ("", 0.0, 0.0)
        """The owner that it was granted to last, its length, and until when it lasts."""

    def take(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, unless another guard may rely on it."""
        start = now()
        granted, *record = self._try(owner, seconds)
        if not granted:
            if not self._is_free(owner, seconds, *record):
                return False
            self._client.script_load(self._mark)
            granted, *_ = self._try(owner, seconds, replace=record[-1])
        if granted:
            self._granted = (owner, seconds, start + seconds)
        return bool(granted)

    def keep(self, owner: str) -> bool:
        """Renew the lease once half of it is over; return `False` if another guard has it."""
        holder, seconds, until = self._granted
        return holder != owner or now() <= until - seconds / 2 or self.take(owner, seconds)

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        if self._granted[0] == owner:
            self.forget()
        self._call(scripts.RELEASE, [self._record], [owner])

    def _is_free(
        self, owner: str, seconds: float, known: int, same_run: int, ms: int, ran: int, state: bytes
    ) -> bool:
        """Return whether no other guard can rely on the lease."""
        wait = max(ms / 1000, seconds)
        holder, _, until = self._granted
        if not same_run and holder == owner and now() < until:
            return True  # the server lost the record of the lease that this client holds
        self.refusal = (
            "another guard holds the store's lease; close that guard, or wait until its lease is "
            f"over (this guard's lease lasts {seconds:g} s)"
        )
        if not known:
            mark = hashlib.sha1(self._mark.encode()).hexdigest()
            if not self._client.script_exists(mark)[0]:
                wait = wait if self._grace is None else self._grace
                if ran >= wait:
                    return True
            self.refusal = (
                "the server may have granted a lease that it no longer knows of, as it was started "
                f"or lost its keys recently; it grants one {wait:g} s after the first attempt (for "
                "a server that is new, pass grace=0 to tamis.stores.Redis)"
            )
            *_, state = self._try(owner, seconds, watch=True)
        return self._watched.is_over(state, wait)

    def _try(self, owner: str, seconds: float, replace: bytes = b"", watch: bool = False) -> Any:
        milliseconds = max(math.ceil(seconds * 1000), 1)
        arguments = [owner, secrets.token_hex(8), milliseconds, replace, int(watch)]
        return self._call(scripts.LEASE, [self._record], arguments)
