"""The threads of a guard: tasks that a query starts, and work that always goes on."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from tamis._clock import now
from tamis.errors import StoreError
from tamis.guard.statistics import Log

if TYPE_CHECKING:
    from tamis.guard.driver import Driver

_FIRST_DELAY, _MAX_DELAY = 1.0, 60.0
"""Seconds between attempts at a task that fails: doubled each time, up to the longest."""

_MIN_INTERVAL, _IDLE_INTERVAL = 0.001, 1.0
"""Seconds between change checks: at least, and while nobody queries the guard."""

SHARING_INTERVAL, _SHARE = 1.0, 20
"""Seconds between snapshots, and at least this many times as long as one takes to write."""

_MIN_CHANGES = 256
"""Changes of the set of keys that are worth another snapshot: as many pages, in the worst case."""


class Task:
    """A function that runs in a thread of its own, in one at a time.

    With ``delayed`` it is not started again too soon: a second after it was started last, and later
    and later until it calls `succeeded`, as it may also fail without an error.
    """

    def __init__(
        self, name: str, work: Callable[[], object], log: Log, *, delayed: bool = False
    ) -> None:
        """``name`` is a phrase for the log, such as "rebuild its filter"."""
        self._name, self._work, self._log, self._delayed = name, work, log, delayed
        self._lock = threading.Lock()
        self._after, self._delay = 0.0, _FIRST_DELAY
        self._logged = False
        self._closed = False
        self.failures = 0
        """How often it failed."""
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the function, unless it is running or failed too recently."""
        at = now()
        with self._lock:
            busy = self.thread is not None and self.thread.is_alive()
            if busy or self._closed or (self._delayed and at < self._after):
                return
            self._after = at + self._delay
            self._delay = min(2 * self._delay, _MAX_DELAY)
            self.thread = threading.Thread(
                target=self._run, name=f"tamis {self._name}", daemon=True
            )
            self.thread.start()

    def succeeded(self) -> None:
        """Forget earlier failures; called also where the work was done in another thread."""
        with self._lock:
            self._delay = _FIRST_DELAY
            self._after = min(self._after, now() + _FIRST_DELAY)
            self._logged = False

    def close(self) -> None:
        """Wait until the function has ended, and do not start it again."""
        with self._lock:
            self._closed = True
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.failures += 1
            if not self._logged:
                self._logged = True
                self._log.error(
                    "the guard could not %s, and will try again: %s",
                    self._name,
                    error,
                    exc_info=not isinstance(error, StoreError),
                )
        else:
            if not self._delayed:
                self.succeeded()


class Follower:
    """Keeps a filter level with a store that others write to.

    It checks the store a few times per ``max_staleness``. A store with signals wakes it after a
    change, so that there is little to apply. It also checks without a signal: that may be missing
    because a connection was lost.
    """

    def __init__(self, driver: Driver, max_staleness: float) -> None:
        """Start the thread. It ends with the guard, also if that is never closed."""
        self._wake, self._closed, self.failures = threading.Event(), False, 0
        self.wake = self._wake.set
        """Lets it check the store now."""
        self._stop_watching = driver.store.watch(self.wake)
        self._interval = max(max_staleness / 4, _MIN_INTERVAL)
        self._thread = threading.Thread(
            target=self._run, args=(weakref.ref(driver),), name="tamis follower", daemon=True
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

    def _run(self, guarded: weakref.ref[Driver]) -> None:
        answered, failed, wait = -1, False, self._interval
        while not self._closed:
            self._wake.wait(wait)
            self._wake.clear()
            driver = guarded()
            if driver is None or self._closed:
                return
            try:
                driver.follow()
                failed = False
            except StoreError as error:
                driver.store_failed()
                if not failed:
                    driver.log.warning("the store cannot be followed: %s", error)
                failed = True
            except Exception:
                if not failed:
                    driver.log.error("following the store failed", exc_info=True)
                failed = True
            self.failures += failed
            latest = driver.replica.gate.denied + driver.replica.gate.found
            idle, answered = latest == answered, latest
            wait = max(self._interval, _IDLE_INTERVAL) if idle or failed else self._interval
            del driver


class Sharer:
    """Shares a guard's snapshot with other processes of the host.

    The guard that holds the lease writes the snapshot after changes; the others map it. A mapped
    page is in memory once for all processes, until one of them writes to it: changes that a guard
    applies after the snapshot go to private copies of pages. So it maps a newer snapshot now and
    then, which frees the copies.
    """

    def __init__(self, driver: Driver, lease: float) -> None:
        """Start the thread. It ends with the guard, also if that is never closed."""
        self._closed = threading.Event()
        self._lease, self.failures = lease, 0
        self._known: object = None
        """Identifies the snapshot that this guard took over last."""
        self._changes, self._capacity = -_MIN_CHANGES, 0
        try:
            if driver.holds_lease():
                self._publish(driver)
        except OSError as error:  # of a full disk, for example
            driver.log.warning("the snapshot could not be shared: %s", error)
        self._thread = threading.Thread(
            target=self._run, args=(weakref.ref(driver),), name="tamis sharing", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, guarded: weakref.ref[Driver]) -> None:
        wait, next_lease = SHARING_INTERVAL, 0.0
        while not self._closed.wait(wait):
            driver = guarded()
            if driver is None:
                return
            start = time.monotonic()
            try:
                # A process that died may have left the lease to nobody.
                if start >= next_lease:
                    next_lease = start + self._lease / 4
                    driver.try_lease()
                self.step(driver)
            except (StoreError, OSError) as error:
                self.failures += 1
                driver.log.warning("the snapshot could not be shared: %s", error)
            except Exception:
                self.failures += 1
                driver.log.error("sharing the snapshot failed", exc_info=True)
            wait = max(SHARING_INTERVAL, _SHARE * (time.monotonic() - start))
            del driver

    def step(self, driver: Driver) -> None:
        """Write the snapshot, or take over the snapshot of another guard."""
        if not driver.holds_lease():
            self._take_over(driver)
        elif self._has_changed(driver):
            self._publish(driver)

    def _has_changed(self, driver: Driver) -> bool:
        """Return whether enough has changed since the last snapshot, or the filter has grown."""
        changes = driver.protocol.changes - self._changes
        grown = driver.replica.filter.capacity != self._capacity
        return driver.protocol.trusted and (grown or changes >= _MIN_CHANGES)

    def _publish(self, driver: Driver) -> None:
        self._changes, self._capacity = driver.protocol.changes, driver.replica.filter.capacity
        driver.save()

    def _take_over(self, driver: Driver) -> None:
        """Use the snapshot if it is another one than before."""
        assert driver.snapshot is not None
        try:
            found = os.stat(os.fsdecode(driver.snapshot))
        except FileNotFoundError:
            return
        # Read first: a snapshot that comes in between is taken over the next time.
        this = (found.st_ino, found.st_mtime_ns)
        if this != self._known and driver.adopt():
            self._known = this
