"""Opening a guard: checks of its arguments, the choice of a filter, and its build."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis._checks import check_number, shown
from tamis.errors import CapacityError
from tamis.filters import Filter, Quotient, Telescoping, from_bytes
from tamis.filters.telescoping import AdaptiveQuotient
from tamis.guard.replica import apply_by_type, insert
from tamis.stores.base import HashRows, Store, check_store

if TYPE_CHECKING:
    from tamis.workload import Workload

_BITS_PER_KEY = 10.0
_MIN_CAPACITY = 1000

_INSTEAD = {
    "sqlite3": "tamis.stores.SQLite(path)",
    "psycopg": "tamis.stores.Postgres(conninfo)",
    "psycopg2": "tamis.stores.Postgres(conninfo)",
    "redis": "tamis.stores.Redis(url)",
    "rocksdict": "tamis.stores.RocksDB(path)",
    "sqlalchemy": "tamis.stores.SQLite(engine, …) or tamis.stores.Postgres(engine, …)",
    "django": "tamis.stores.SQLite(connection, …) or tamis.stores.Postgres(connection, …)",
}
"""The store to use instead of a connection, by the module that the connection is from."""


def check_is_store(store: object) -> None:
    """Raise `TypeError` if this is not a store, with the store to use instead if it is known."""
    kind = type(store)
    if isinstance(store, dict):
        raise TypeError(
            "store must be a store of tamis.stores, such as tamis.stores.Memory(), not a dict: put "
            "its items into the store with put_many"
        )
    if instead := _INSTEAD.get(kind.__module__.partition(".")[0]):
        raise TypeError(
            f"store must be a store of tamis.stores, not a {kind.__module__}.{kind.__name__}: pass "
            f"{instead}, which makes connections of its own"
        )
    if isinstance(store, str):
        raise TypeError(
            "store must be a store of tamis.stores, such as tamis.stores.SQLite(path), not a str"
        )
    check_store(store)


def check_is_filter(filter: object) -> None:
    """Raise `TypeError` if this is not a filter."""
    if not isinstance(filter, Filter):
        raise TypeError(
            "filter must be a filter, such as tamis.Quotient(capacity=10**6, fpr=0.01), "
            f"not {shown(filter)} ({type(filter).__name__})"
        )


def choose_filter(
    store: Store, bits_per_key: float | None, workload: Workload | None
) -> tuple[Filter, str]:
    """Return an empty filter for the keys that a store has, and a sentence about the choice."""
    _, parts = store.contents()
    with closing_parts(parts):
        keys = sum(map(len, parts))
    capacity, bits = max(keys, _MIN_CAPACITY), _BITS_PER_KEY
    if bits_per_key is not None:
        bits = check_number("bits_per_key", bits_per_key, "a number above 0", above=0)
    if not store.indexes:
        filter: Filter = Quotient(capacity=capacity, bits_per_key=bits)
        reason = "The store has no index of hashes, by which other filters adapt."
    elif workload is None:
        filter = Telescoping(capacity=capacity, bits_per_key=bits)
        reason = "It adapts to false positives, and grows with the store."
    else:
        filter, reason = _advised(capacity, bits, workload)
    return filter, (
        f"tamis.{type(filter).__name__} for {capacity:,} keys (the store has {keys:,}) with "
        f"{bits:g} bits per key: {reason}"
    )


def _advised(capacity: int, bits_per_key: float, workload: Workload) -> tuple[Filter, str]:
    """Return the best filter by `tamis.advise` among the kinds that a guard can fill."""
    import tamis

    needs = {"insert", "delete", "store"}
    advice = tamis.advise(capacity, workload, bits_per_key=bits_per_key, needs=needs)
    for choice in advice.choices:
        if choice.plan is None:  # a stack of known negatives is built from its keys
            make = getattr(tamis, choice.filter)
            return make(capacity=capacity, **choice.arguments), choice.reason
    raise ValueError(
        f"bits_per_key must be enough for a filter that keys can be added to, not {bits_per_key:g}"
    )


def find_key(store: Store, filter: Any, key: bytes | None) -> bytes | None:
    """Return the filter's secret key: the one passed in, or the one that the store keeps."""
    if filter.seed is not None:
        if key is not None:
            raise ValueError("key must be None for a filter with a seed instead of a secret key")
        return None
    if key is None:
        key = store.metadata("key")
    if key is None:
        raise ValueError(
            "key must be the filter's secret key, not None: the store does not have the key yet"
        )
    from_bytes(filter.to_bytes(), key=key)  # IncompatibleError if it is another key
    return store.metadata("key", key)


def index_name(filter: Any, key: bytes | None) -> bytes:
    """Return the name of the filter's hash, by which a store indexes its keys."""
    if key is not None:
        return b"key " + hashlib.blake2b(key, digest_size=16).digest()
    return b"seed %d" % filter.seed


def index_seed(store: Store) -> int | None:
    """Return the seed of the hash by which a store indexes its keys, if it has one."""
    name, _, seed = (store.metadata("index") or b"").partition(b" ")
    return int(seed) if name == b"seed" and seed.isdigit() else None


def reseeded(filter: Any, seed: int | None) -> Any:
    """Return an empty filter like this one that hashes with another seed."""
    if seed is None or filter.seed in (None, seed):
        return filter
    return type(filter)._of(filter._reseeded(seed))


class Builder:
    """Builds a filter of all the store's keys, or checks the one that was given."""

    def __init__(self, store: Store, filter: Any, key: bytes | None) -> None:
        """Keep an empty filter as the model of filters to build; check any other filter."""
        self._store, self._key = store, key
        empty = filter.inserts and len(filter) == 0
        self._empty = zlib.compress(filter.to_bytes(), 1) if empty else None

    def build(self, current: Any) -> tuple[Any, str]:
        """Return a filter of the store's keys, perhaps the current one, and their position."""
        if self._empty is None:
            return current, check_filter(current, self._store)
        return self._filled(self._empty)

    def _filled(self, empty: bytes) -> tuple[Any, str]:
        """Return a filter of all the store's keys, from the bytes of an empty filter.

        No remote is passed, as it would list keys that the filter does not have yet. So a filter
        that needs the remote to grow is grown while it is still empty.
        """
        doublings = 0
        while True:
            filter: Any = from_bytes(zlib.decompress(empty), key=self._key)
            for _ in range(doublings):
                filter.grow(_NoHashes())
            position, parts = self._store.contents()
            try:
                with closing_parts(parts):
                    for keys in parts:
                        insert(filter, keys, None)
                return filter, position
            except CapacityError:
                if not isinstance(filter, AdaptiveQuotient):
                    raise
                doublings += 1


def check_filter(filter: Any, store: Store) -> str:
    """Check that the filter accepts all the store's keys; return their position."""
    position, parts = store.contents()
    with closing_parts(parts):
        for keys in parts:
            accepted = apply_by_type(filter.contains, keys)
            if not accepted.all():
                key = keys[int(np.argmin(accepted))]
                raise ValueError(
                    "filter must be empty and support insertion, or contain all the store's keys; "
                    f"this one denies {key!r}, which the store has"
                )
    return position


@contextmanager
def closing_parts(parts: Iterator[Any]) -> Iterator[None]:
    """End the read transaction of a store's keys, which would block the release of the lease."""
    try:
        yield
    finally:
        if close := getattr(parts, "close", None):  # of a generator
            close()


class _NoHashes:
    """The remote of an empty filter."""

    def run(self, lo: int, hi: int) -> HashRows:
        """Return no hashes."""
        return np.empty((0, 2), dtype=np.uint64)

    def scan(self) -> Iterator[HashRows]:
        """Return no hashes."""
        return iter(())
