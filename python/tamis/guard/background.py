"""Work of a guard in the background: one thread per task, started when a query needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tamis._clock import now
from tamis.errors import StoreError
from tamis.guard.log import Log

_FIRST_DELAY, _MAX_DELAY = 1.0, 60.0
"""Seconds between attempts at a task that fails: doubled each time, up to the longest."""


class Task:
    """A function that runs in a thread of its own, in one at a time.

    With ``delayed`` it is not started again too soon: a second after it was started last, and later
    and later until it calls `succeeded`, as it may also fail without an error.
    """

    def __init__(
        self, name: str, work: Callable[[], None], log: Log, *, delayed: bool = False
    ) -> None:
        """``name`` is a phrase for the log, such as "rebuild its filter"."""
        self._name, self._work, self._log, self._delayed = name, work, log, delayed
        self._lock = threading.Lock()
        self._after, self._delay = 0.0, _FIRST_DELAY
        self._logged = False
        self._closed = False
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
        if self.thread is not None:
            self.thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
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
