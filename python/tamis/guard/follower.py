"""The thread that keeps a filter level with a store that others write to."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from tamis.errors import StoreError

if TYPE_CHECKING:
    from tamis.guard.trust import Trust

_MIN_INTERVAL, _IDLE_INTERVAL = 0.001, 1.0
"""Seconds between change checks: at least, and while nobody queries the guard."""


class Follower:
    """Checks the store a few times per ``max_staleness``, and replays its changes.

    A store with signals wakes it after a change, so that there is little to replay. It also checks
    without a signal: that may be missing because a connection was lost.
    """

    def __init__(self, trust: Trust, max_staleness: float) -> None:
        """Start the thread. It ends with the guard, also if that is never closed."""
        self._wake, self._closed = threading.Event(), False
        self._stop_watching = trust.store.watch(self._wake.set)
        self._interval = max(max_staleness / 4, _MIN_INTERVAL)
        self._thread = threading.Thread(
            target=self._run, args=(weakref.ref(trust),), name="tamis follower", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake.set()
        if self._stop_watching is not None:
            self._stop_watching()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, guarded: weakref.ref[Trust]) -> None:
        answered, failed, wait = -1, False, self._interval
        while not self._closed:
            self._wake.wait(wait)
            self._wake.clear()
            trust = guarded()
            if trust is None or self._closed:
                return
            try:
                trust.follow()
                failed = False
            except StoreError as error:
                trust.store_failed()
                if not failed:
                    trust.log.warning("the store cannot be followed: %s", error)
                failed = True
            except Exception:
                if not failed:
                    trust.log.error("following the store failed", exc_info=True)
                failed = True
            latest = trust.replica.gate.denied + trust.replica.gate.found
            idle, answered = latest == answered, latest
            wait = max(self._interval, _IDLE_INTERVAL) if idle or failed else self._interval
            del trust
