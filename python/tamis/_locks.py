"""Locks that outlive interrupts and forks.

*Interrupts.* A signal handler that raises, such as Python's own for Ctrl-C, can run between any two
bytecodes: also after a lock was acquired but before the caller has stored that fact, and at the
start of ``__exit__``. Other threads would then wait forever. So `Locked` acquires and releases all
locks in one call of C code each, during which no handler runs; locks left by an interrupted
``__exit__`` are released when the context is garbage-collected.

*Forks.* A forked child has the memory of its parent but only the thread that forked, so a lock held
by another thread would never be released there. A `fork_safe_lock` is released in the child. Use it
only for state that is valid at every moment; structures in native code have locks of their own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import compress, repeat

_RLock = type(threading.RLock())
_run: deque[None] = deque(maxlen=0)
"""``_run.extend(calls)`` exhausts an iterator of calls in C, and stores nothing."""

_fork_safe: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


class Locked:
    """A context that holds reentrant locks, acquired in this order.

    With ``wait=False`` it holds all of them or none; ``with … as held`` says which. ``count`` is a
    list of counters and the indices to increment before the locks are released.
    """

    _release: Iterator[None] = iter(())

    def __init__(
        self,
        locks: Sequence[threading.RLock],
        *,
        wait: bool = True,
        count: tuple[list[int], Sequence[int]] | None = None,
    ) -> None:
        self._wait, self._count = wait, count
        self._taken: list[bool] = []
        self._take = map(_RLock.acquire, locks, repeat(wait))
        # Iterators resume where they stopped: each acquired lock is released once.
        self._release = map(_RLock.release, compress(locks, self._taken))

    def __enter__(self) -> bool:
        try:
            self._taken.extend(self._take)
            if self._wait or all(self._taken):
                return True
        except BaseException:
            _run.extend(self._release)
            raise
        _run.extend(self._release)
        return False

    def __exit__(self, *_: object) -> None:
        try:
            if self._count is not None:
                counts, indices = self._count
                if len(indices) == len(counts):
                    counts[:] = [count + 1 for count in counts]
                else:
                    for i in indices:
                        counts[i] += 1
        finally:
            _run.extend(self._release)

    def __del__(self) -> None:
        _run.extend(self._release)


def fork_safe_lock() -> threading.Lock:
    """Create a lock that is released in a forked child."""
    lock = threading.Lock()
    _fork_safe.add(lock)
    return lock


def _release_in_child() -> None:
    for lock in _fork_safe:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
