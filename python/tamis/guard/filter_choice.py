"""The filter of a guard if none is given, and checks of the store and filter arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tamis._checks import check_number, shown
from tamis.filters import Telescoping
from tamis.guard.construction import closing_parts
from tamis.stores.contract import Store, check_store

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
    if not all(hasattr(filter, name) for name in ("contains", "inserts", "seed", "to_bytes")):
        raise TypeError(
            "filter must be a filter, such as tamis.Quotient(capacity=10**6, fpr=0.01), "
            f"not {shown(filter)} ({type(filter).__name__})"
        )


def choose_filter(
    store: Store, bits_per_key: float | None, workload: Workload | None
) -> tuple[Any, str]:
    """Return an empty filter for the keys that a store has, and a sentence about the choice."""
    _, parts = store.contents()
    with closing_parts(parts):
        keys = sum(map(len, parts))
    capacity, bits = max(keys, _MIN_CAPACITY), _BITS_PER_KEY
    if bits_per_key is not None:
        bits = check_number("bits_per_key", bits_per_key, "a number above 0", above=0)
    if workload is None:
        filter: Any = Telescoping(capacity=capacity, bits_per_key=bits)
        reason = "It adapts to false positives, and grows with the store."
    else:
        filter, reason = _advised(capacity, bits, workload)
    return filter, (
        f"tamis.{type(filter).__name__} for {capacity:,} keys (the store has {keys:,}) with "
        f"{bits:g} bits per key: {reason}"
    )


def _advised(capacity: int, bits_per_key: float, workload: Workload) -> tuple[Any, str]:
    """Return the best filter by `tamis.advise` among those that a guard can fill."""
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
