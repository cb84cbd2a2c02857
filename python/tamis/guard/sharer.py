"""The thread that shares a guard's snapshot with other processes of the host.

The guard that holds the lease writes the snapshot after changes; the others map it. A mapped page
is in memory once for all processes, until one of them writes to it: changes that a guard
replays after the snapshot go to private copies of pages. So it maps a newer snapshot now and then,
which frees the copies.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from tamis.errors import StoreError
from tamis.stores._keyvalue import epoch_number

if TYPE_CHECKING:
    from tamis.guard.trust import Trust

_INTERVAL, _SHARE = 1.0, 20
"""Seconds between snapshots, and at least this many times as long as one takes to write."""

_MIN_CHANGES = 256
"""Changes of the set of keys that are worth another snapshot: as many pages, in the worst case."""


class Sharer:
    """Writes the snapshot of a guard with the lease, and takes over the snapshot of another."""

    def __init__(self, trust: Trust, lease: float) -> None:
        """Start the thread. It ends with the guard, also if that is never closed."""
        self._closed = threading.Event()
        self._lease = lease
        self._known: object = None
        """Identifies the snapshot that this guard took over last."""
        self._epoch, self._capacity = "0.", 0
        try:
            if trust.freshness.holds_lease():
                self._publish(trust)
        except OSError as error:  # of a full disk, for example
            trust.log.warning("the snapshot could not be shared: %s", error)
        self._thread = threading.Thread(
            target=self._run, args=(weakref.ref(trust),), name="tamis sharing", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, guarded: weakref.ref[Trust]) -> None:
        wait, next_lease = _INTERVAL, 0.0
        while not self._closed.wait(wait):
            trust = guarded()
            if trust is None:
                return
            start = time.monotonic()
            try:
                # A process that died may have left the lease to nobody.
                if start >= next_lease:
                    next_lease = start + self._lease / 4
                    trust.try_lease()
                if trust.freshness.holds_lease():
                    if self._has_changed(trust):
                        self._publish(trust)
                else:
                    self._take_over(trust)
            except (StoreError, OSError) as error:
                trust.log.warning("the snapshot could not be shared: %s", error)
            except Exception:
                trust.log.error("sharing the snapshot failed", exc_info=True)
            wait = max(_INTERVAL, _SHARE * (time.monotonic() - start))
            del trust

    def _has_changed(self, trust: Trust) -> bool:
        """Return whether enough has changed since the last snapshot, or the filter has grown."""
        changes = epoch_number(trust.replica.epoch) - epoch_number(self._epoch)
        grown = trust.replica.filter.capacity != self._capacity
        return trust.freshness.trusted and (grown or not 0 <= changes < _MIN_CHANGES)

    def _publish(self, trust: Trust) -> None:
        self._epoch, self._capacity = trust.replica.epoch, trust.replica.filter.capacity
        trust.save()

    def _take_over(self, trust: Trust) -> None:
        """Use the snapshot if it is another one than before."""
        assert trust.snapshot is not None
        try:
            found = os.stat(os.fsdecode(trust.snapshot))
        except FileNotFoundError:
            return
        # Read first: a snapshot that comes in between is taken over the next time.
        this = (found.st_ino, found.st_mtime_ns)
        if this != self._known and trust.adopt():
            self._known = this
