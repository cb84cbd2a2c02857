"""Several locks at once, which are released whatever interrupts the thread that holds them.

A signal handler that raises, as that of Ctrl-C does, may do so between any two steps of Python
code: also after a lock was taken and before anybody knows of it, and at the beginning of
``__exit__``. Other threads would then wait for ever. So the locks are taken, and released, in one
call of C code each, between whose steps no handler runs; and what an interrupted ``__exit__``
leaves is released when the context itself is dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import compress, repeat

_RLock = type(threading.RLock())
_run: deque[None] = deque(maxlen=0)
"""``_run.extend(calls)`` makes all calls of an iterator, and keeps nothing."""


class Locked:
    """A context that holds reentrant locks, taken in this order.

    If it is not to wait, it holds all of them or none; ``with … as held`` says which. If it is to
    ``count``, it adds one to the counts at some indices, before it releases the locks.
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
        # As both read on where they stopped, a lock is released once, and only if it was taken.
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
