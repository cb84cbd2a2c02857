"""Filters for a guard: filled with the keys of a store, or checked against them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tamis.errors import CapacityError
from tamis.filters import from_bytes
from tamis.guard.keys import apply_by_type, split_by_type
from tamis.guard.regions import EmptyRemote
from tamis.stores.contract import Store


def adapts(filter: Any) -> bool:
    """Tell whether a filter learns from false positives."""
    return hasattr(filter, "adapt_many")


def insert(filter: Any, keys: list[Any], remote: Any) -> None:
    """Insert keys into a filter, with the remote if there is one and it takes one."""
    if not filter.inserts:
        raise TypeError(
            f"a {type(filter).__name__} filter takes no insertions; guard a set that changes "
            "with one that does, such as tamis.Quotient"
        )
    for part in split_by_type(keys):
        some = [keys[i] for i in part]
        if remote is not None and adapts(filter):
            filter.update(some, remote)
        else:
            filter.update(some)


def build_filter(empty: bytes, key: bytes | None, store: Store) -> tuple[Any, str]:
    """Return a filter of all keys of the store, and their epoch; ``empty`` is it without them.

    Without a remote, which would list keys that the filter is still to get: one that is too
    small for the keys and could grow only with it is made larger while it is empty.
    """
    doublings = 0
    while True:
        filter = from_bytes(zlib.decompress(empty), key=key)
        for _ in range(doublings):
            filter.grow(EmptyRemote())
        epoch, parts = store.contents()
        try:
            with _closing(parts):
                for keys in parts:
                    insert(filter, keys, None)
            return filter, epoch
        except CapacityError:
            if not (adapts(filter) and hasattr(filter, "grow")):
                raise
            doublings += 1


def check_filter(filter: Any, store: Store) -> str:
    """Return the epoch of the store's keys, once the filter has passed them all."""
    epoch, parts = store.contents()
    with _closing(parts):
        for keys in parts:
            there = apply_by_type(filter.contains, keys)
            if not there.all():
                key = keys[int(np.argmin(there))]
                raise ValueError(
                    f"filter denies {key!r}, which the store has; a guard takes an empty filter "
                    "that it can fill, or a filter of all the store's keys"
                )
    return epoch


@contextmanager
def _closing(parts: Any) -> Iterator[None]:
    """End the reading of a store's keys: its transaction would keep the lease from going back."""
    try:
        yield
    finally:
        if hasattr(parts, "close"):
            parts.close()
