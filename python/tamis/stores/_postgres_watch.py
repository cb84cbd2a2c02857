"""Signals of a PostgreSQL server, which triggers send when keys have changed."""

from __future__ import annotations

import random
import select
import threading
from collections.abc import Callable
from typing import Any

from tamis.errors import StoreError
from tamis.stores._postgres_connections import Connections

_FIRST_DELAY, _MAX_DELAY = 0.1, 1.0
"""Seconds between attempts to connect: doubled after each failure, up to the longest."""

_QUIET = 40
"""Quarters of a second after which a connection that sends nothing is checked."""


def listen(
    connections: Connections,
    errors: type[Exception],
    channel: str,
    wake: Callable[[], None],
    ended: threading.Event,
) -> None:
    """Call ``wake`` after each signal, and each new connection, until ``ended`` is set."""
    delay = _FIRST_DELAY
    while not ended.is_set():
        try:
            with connections.connect() as db:
                db.execute(f"LISTEN {channel}")
                delay = _FIRST_DELAY
                wake()
                _await_signals(db, wake, ended)
        except (StoreError, errors, OSError, ValueError):
            # Not all guards at the same time.
            ended.wait(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, _MAX_DELAY)


def _await_signals(db: Any, wake: Callable[[], None], ended: threading.Event) -> None:
    quiet = 0
    while not ended.is_set():
        if select.select([db.fileno()], [], [], 0.25)[0]:
            quiet = 0
        elif (quiet := quiet + 1) % _QUIET == 0:
            db.execute("SELECT 1")  # a connection that is lost without a word
        db.pgconn.consume_input()
        woken = False
        while db.pgconn.notifies() is not None:
            woken = True
        if woken:
            wake()
