"""Connections: the addresses of databases, forked processes, and threads that wait for signals."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

# Addresses.

ADDRESS_OF = "an engine of SQLAlchemy or a connection of Django"


class Address(NamedTuple):
    """Where the database of an SQLAlchemy engine or a Django connection is.

    A store opens its own connections, so it takes only the address from them. They are recognized
    by their attributes: neither package is imported.
    """

    source: str
    name: str | None
    """The name of the database, or the path of its file."""
    fields: dict[str, Any]
    """The host, the port, the user and the password, if they are given."""
    options: Mapping[str, Any]


def read_address(database: Any, dialect: str) -> Address | None:
    """Return the address of an engine or a Django connection, or `None` if it is neither.

    Raise `ValueError` if it is for another dialect of SQL.
    """
    if hasattr(database, "dialect") and hasattr(database, "url"):
        source, found, url = "an engine of SQLAlchemy", database.dialect.name, database.url
        name, options = url.database, url.query
        fields = url.translate_connect_args(username="user")
        fields.pop("database", None)
    elif hasattr(database, "settings_dict") and hasattr(database, "vendor"):
        source, found = "a connection of Django", database.vendor
        settings = database.settings_dict
        name, options = settings["NAME"] and str(settings["NAME"]), settings.get("OPTIONS") or {}
        fields = {part.lower(): settings.get(part) for part in ("HOST", "PORT", "USER", "PASSWORD")}
    else:
        return None
    if found != dialect:
        raise ValueError(f"{source} must be for {dialect}, not for {found}")
    return Address(source, name, {k: v for k, v in fields.items() if v not in (None, "")}, options)


# Forks.


class Forks(Protocol):
    """An object with connections that a forked child must not use.

    A connection that two processes use mixes their answers, and closing an inherited SQLite
    connection drops the parent's locks. So a child opens connections of its own, and neither uses
    nor closes the inherited ones. It also writes as another owner: a guard is copied with the rest
    of the memory, and two guards must not write under one name.
    """

    def forget_connections(self) -> Any:
        """Make new locks, forget the connections without closing them, and return them."""


_stores: weakref.WeakSet[Forks] = weakref.WeakSet()
_inherited: list[Any] = []
"""Connections of the parent, kept so that they are never closed by the garbage collector."""


def forget_after_fork(store: Forks) -> None:
    """Call ``store.forget_connections()`` in every child that is forked from now on."""
    _stores.add(store)


def _become_child() -> None:
    for store in list(_stores):
        _inherited.append(store.forget_connections())


os.register_at_fork(after_in_child=_become_child)


# Signals.


def start_watching(name: str, listen: Callable[[threading.Event], None]) -> Callable[[], None]:
    """Run ``listen`` in a thread until its event is set; return a function that sets it."""
    ended = threading.Event()
    thread = threading.Thread(target=listen, args=(ended,), name=name, daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        if thread is not threading.current_thread():
            thread.join()

    return end
