"""Build a filter from the keys of a store, or check one against them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tamis.errors import CapacityError
from tamis.filters import from_bytes
from tamis.guard.keys import apply_by_type, split_by_type
from tamis.guard.regions import EmptyRemote, RemoteWithout
from tamis.stores.contract import Store


def adapts(filter: Any) -> bool:
    """Return whether a filter adapts to false positives."""
    return hasattr(filter, "adapt_many")


def insert(filter: Any, keys: list[Any], remote: Any) -> None:
    """Insert keys into a filter; an adaptive one also gets the remote, if there is one."""
    if not filter.inserts:
        raise TypeError(
            f"a {type(filter).__name__} filter does not support insertion; guard a set that "
            "changes with a filter that does, such as tamis.Quotient"
        )
    more = (remote,) if remote is not None and adapts(filter) else ()
    if len(keys) == 1:
        filter.add(keys[0], *more)
        return
    done: list[list[Any]] = []
    for part in split_by_type(keys):
        some = keys if len(part) == len(keys) else [keys[i] for i in part]
        try:
            filter.update(some, *more)
        except CapacityError:
            for earlier in done if filter.deletes else ():
                filter.remove_many(earlier, *more)
            raise
        done.append(some)
        if isinstance(remote, RemoteWithout):
            # The filter may grow for the next part, from the hashes that the remote lists.
            remote.include(part)


def reseeded(filter: Any, seed: int | None) -> Any:
    """Return an empty filter like this one that hashes with another seed."""
    if seed is None or filter.seed in (None, seed):
        return filter
    return type(filter)._of(filter._reseeded(seed))


def build_filter(empty: bytes, key: bytes | None, store: Store) -> tuple[Any, str]:
    """Return a filter of all the store's keys, and their epoch, from the bytes of an empty filter.

    No remote is passed, as it would list keys that the filter does not have yet. So a filter that
    needs the remote to grow is grown while it is still empty.
    """
    doublings = 0
    while True:
        filter: Any = from_bytes(zlib.decompress(empty), key=key)
        for _ in range(doublings):
            filter.grow(EmptyRemote())
        epoch, parts = store.contents()
        try:
            with closing_parts(parts):
                for keys in parts:
                    insert(filter, keys, None)
            return filter, epoch
        except CapacityError:
            if not (adapts(filter) and hasattr(filter, "grow")):
                raise
            doublings += 1


def check_filter(filter: Any, store: Store) -> str:
    """Check that the filter accepts all the store's keys; return their epoch."""
    epoch, parts = store.contents()
    with closing_parts(parts):
        for keys in parts:
            accepted = apply_by_type(filter.contains, keys)
            if not accepted.all():
                key = keys[int(np.argmin(accepted))]
                raise ValueError(
                    "filter must be empty and support insertion, or contain all the store's keys; "
                    f"this one denies {key!r}, which the store has"
                )
    return epoch


@contextmanager
def closing_parts(parts: Any) -> Iterator[None]:
    """End the read transaction of a store's keys, which would block the release of the lease."""
    try:
        yield
    finally:
        if hasattr(parts, "close"):
            parts.close()
