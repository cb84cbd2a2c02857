"""Locks in forked processes.

A forked child has the memory of its parent but only the thread that forked, so a lock that another
thread held would never be released there. The locks of this module are released in the child. They
are for state that is whole at every moment; structures in native code have locks of their own.
"""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def lock() -> threading.Lock:
    """Create a lock that is released in a forked child."""
    new = threading.Lock()
    _locks.add(new)
    return new


def _release_all() -> None:
    for each in _locks:
        each._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)
