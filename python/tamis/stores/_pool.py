"""Connections of `tamis.stores.Postgres`: as many as threads use at once, up to a number.

A connection that fails is closed, and so are those that are idle, as the server is probably gone.
The next call connects again; after an attempt that failed, calls fail at once for a moment, so that
a server that comes back is not met by all threads at the same time.
"""

from __future__ import annotations

import inspect
import random
import select
import threading
import time
from collections.abc import Generator
from typing import Any

from tamis.errors import StoreError
from tamis.stores.contract import schema_error, store_error

_CHANGED = {"42P01", "42703", "42704", "42883", "42P10", "3F000", "42501"}
"""States of errors about a table, column, type, function, index, schema or right that is gone."""

_FIRST_DELAY, _MAX_DELAY = 0.05, 1.0
"""Seconds between attempts to connect: doubled after each failure, up to the longest."""


class Pool:
    """Connections to one database. ``timeout`` limits each wait: to connect, or for a statement."""

    def __init__(self, psycopg: Any, conninfo: str, size: int, timeout: float | None) -> None:
        self._psycopg, self._conninfo, self._timeout = psycopg, conninfo, timeout
        self._size = size
        self._idle_status = psycopg.pq.TransactionStatus.IDLE
        self._class = _connection_class(psycopg, timeout)
        self.where = _describe(psycopg, conninfo)
        self.closed = False
        self.reset()

    def reset(self) -> list[Any]:
        """Forget all connections, without closing them, and return them."""
        forgotten = [*getattr(self, "_idle", ()), *getattr(self, "_used", ())]
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting = 0
        """How many threads wait for a connection of others."""
        self._idle: list[Any] = []
        self._used: set[Any] = set()
        self._taken = 0
        """How many connections are in use, or are being opened for that."""
        self._delay, self._not_before = _FIRST_DELAY, 0.0
        return forgotten

    def connection(self) -> _Lent:
        """Return a context with a connection in autocommit mode, for one thread."""
        return _Lent(self)

    def take(self) -> Any:
        """Return a connection, an idle or a new one."""
        with self._lock:
            if self._taken >= self._size:
                self._await_room()
            self._taken += 1
            db = self._idle.pop() if self._idle else None
        try:
            while db is not None and _is_dead(db):
                db.close()
                with self._lock:
                    db = self._idle.pop() if self._idle else None
            if db is None:
                db = self.connect()
            self._used.add(db)
            return db
        except BaseException:
            with self._lock:
                self._leave()
            raise

    def _await_room(self) -> None:
        """Wait, with the lock held, until fewer connections are in use than there may be."""
        self._waiting += 1
        try:
            if self._room.wait_for(lambda: self._taken < self._size, self._timeout):
                return
        finally:
            self._waiting -= 1
        raise StoreError(f"{self.where} took too long: all {self._size} connections are in use")

    def _leave(self) -> None:
        self._taken -= 1
        if self._waiting:
            self._room.notify()

    def give_back(self, db: Any, error: BaseException | None) -> None:
        """Take a connection back; close it if it cannot be used again."""
        lost = db.closed or isinstance(error, self._psycopg.OperationalError)
        idle = db.pgconn.transaction_status == self._idle_status
        closing: list[Any] = []
        with self._lock:
            self._used.discard(db)
            if idle and not (lost or self.closed):
                self._idle.append(db)
            else:
                closing.append(db)
                if lost and db.closed:
                    closing += self._idle
                    self._idle = []
            self._leave()
        for each in closing:
            each.close()

    def connect(self) -> Any:
        """Open a connection that does not belong to the pool."""
        if self.closed:
            raise ValueError(f"the store of {self.where} is closed")
        if time.monotonic() < self._not_before:
            raise StoreError(f"{self.where} is unreachable; the last attempt failed just now")
        seconds = {} if self._timeout is None else {"connect_timeout": max(int(self._timeout), 2)}
        try:
            db = self._class.connect(self._conninfo, autocommit=True, **seconds)
            if self._timeout is not None:
                db.execute(f"SET statement_timeout = {max(int(self._timeout * 1000), 1)}")
        except self._psycopg.OperationalError as error:
            # Not all guards at the same time.
            self._not_before = time.monotonic() + self._delay * random.uniform(0.5, 1.0)
            self._delay = min(2 * self._delay, _MAX_DELAY)
            raise store_error(self.where, error) from error
        self._delay, self._not_before = _FIRST_DELAY, 0.0
        return db

    def translate(self, error: BaseException | None) -> None:
        """Raise `StoreError` for an error about the connection, about time or about the schema.

        A `Rollback` comes here only if the connection was lost while it was carried out.
        """
        if isinstance(error, (self._psycopg.OperationalError, self._psycopg.Rollback)):
            raise store_error(self.where, error) from error
        if getattr(error, "sqlstate", None) in _CHANGED:
            raise schema_error(self.where, error) from error  # type: ignore[arg-type]

    def close(self) -> None:
        """Close the idle connections; the others are closed when they are given back."""
        self.closed = True
        with self._lock:
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()


class _Lent:
    """A context with a connection of a pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __enter__(self) -> Any:
        self._db = self._pool.take()
        return self._db

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._pool.give_back(self._db, error)
        if error is not None:
            self._pool.translate(error)


def _is_dead(db: Any) -> bool:
    """Return whether a connection is closed, or the server has said something unasked: goodbye."""
    if db.closed:
        return True
    poll = select.poll()
    poll.register(db.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _connection_class(psycopg: Any, timeout: float | None) -> Any:
    """Return a connection class that stops to wait for a server after a while.

    The server's own ``statement_timeout`` says nothing where the network swallows its answer.
    """
    if timeout is None:
        return psycopg.Connection
    # A little later than the server, which says more.
    seconds = timeout + 1.0
    if "timeout" in inspect.signature(psycopg.Connection.wait).parameters:

        class Connection(psycopg.Connection):  # type: ignore[misc]
            def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
                options.setdefault("timeout", seconds)
                try:
                    return super().wait(gen, *arguments, **options)
                except psycopg.errors._WaitTimeout:
                    self.pgconn.finish()  # what the server does is unknown
                    raise

        return Connection

    class OlderConnection(psycopg.Connection):  # type: ignore[misc]
        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return super().wait(_limited(gen, seconds), *arguments, **options)
            except TimeoutError:
                self.pgconn.finish()
                raise psycopg.OperationalError(f"no answer within {seconds:g} s") from None

    return OlderConnection


def _limited(gen: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """Wait like ``gen``, which psycopg resumes now and then even if nothing happened."""
    until = time.monotonic() + seconds
    value = next(gen)
    try:
        while True:
            ready = yield value
            if not ready and time.monotonic() > until:
                raise TimeoutError
            value = gen.send(ready)
    except StopIteration as done:
        return done.value


def _describe(psycopg: Any, conninfo: str) -> str:
    """Name the server without user and password."""
    try:
        fields = psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        # The driver's message may contain the password.
        raise ValueError(
            "conninfo must be a libpq connection string such as 'host=localhost dbname=shop' or "
            "'postgresql://localhost/shop'"
        ) from None
    host, port = fields.get("host", "localhost"), fields.get("port", "5432")
    return f"Postgres at {host}:{port}"
