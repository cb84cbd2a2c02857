"""Stores in a forked child, which must not use the connections of its parent.

A connection that two processes use mixes their answers, and closing an inherited SQLite connection
drops the parent's locks. So a child opens connections of its own, and leaves the inherited ones as
they are, neither used nor closed. The child's writes are another owner's: guards copy their owner's
name with the rest of their memory, and must not both write under it.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

_inherited: list[Any] = []
"""Connections of the parent, kept so that they are never closed by the garbage collector."""


class Forks(Protocol):
    """An object that takes part in forks."""

    def forget_connections(self) -> Any:
        """Make new locks, forget the connections without closing them, and return them."""


_stores: weakref.WeakSet[Forks] = weakref.WeakSet()


def register(store: Forks) -> None:
    """Call ``store.forget_connections()`` in every child that is forked from now on."""
    _stores.add(store)


def _become_child() -> None:
    for store in list(_stores):
        _inherited.append(store.forget_connections())


os.register_at_fork(after_in_child=_become_child)
