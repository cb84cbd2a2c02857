"""Connections of `tamis.stores.Postgres`: a pool of psycopg_pool, and connections apart from it.

The pool opens connections when threads need them, up to a number, and replaces lost ones. While the
server is unreachable the pool alone would let a query wait for the whole time-out; here the query
fails as soon as an attempt to connect has failed.
"""

from __future__ import annotations

import inspect
import os
import random
import select
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from tamis.errors import StoreError
from tamis.stores.base import check_address, schema_error, store_error
from tamis.stores.connections import ADDRESS_OF, read_address

_CHANGED = {"42P01", "42703", "42704", "42883", "42P10", "3F000", "42501", "25006"}
"""SQLSTATE codes: a table, column, type, function, index, schema or privilege is missing, or
transactions are read-only by default."""

_PATIENCE = 0.25
"""Seconds to wait for the pool before checking whether its attempts to connect fail."""

_FOREVER = 1e9
"""Seconds to wait if there is no time-out."""


_FIRST_DELAY, _MAX_DELAY = 0.1, 1.0
"""Seconds between attempts to connect: doubled after each failure, up to the longest."""

_QUIET = 40
"""Quarters of a second after which a connection that sends nothing is checked."""


def connection_string(database: Any) -> str:
    """Return a connection string, given as such, by an SQLAlchemy engine or by Django."""
    address = read_address(database, "postgresql")
    if address is None:
        given = check_address("conninfo", database, str, f"a connection string, {ADDRESS_OF}")
        return str(given)
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import Conninfo

    fields = dict(address.fields)
    if address.name:
        fields["dbname"] = address.name
    # Options of the driver rather than of libpq are about connections that the store does not make.
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    fields |= {k: v for k, v in address.options.items() if k in known and isinstance(v, (str, int))}
    return make_conninfo(**{k: v for k, v in fields.items() if v != ""})


class Connections:
    """Connections to one database. ``timeout`` limits each wait: to connect, or for a statement."""

    def __init__(
        self, conninfo: str, size: int, timeout: float | None, prepare: bool = True
    ) -> None:
        try:
            import psycopg
            import psycopg_pool
        except ImportError:
            raise ImportError(
                "tamis.stores.Postgres needs psycopg and psycopg_pool: pip install tamis[postgres]"
            ) from None
        self.psycopg: Any = psycopg
        self._psycopg_pool: Any = psycopg_pool
        self._pool_class = _pool_class(psycopg_pool)
        self._conninfo, self._size, self.timeout = conninfo, size, timeout
        self._options: dict[str, Any] = {"autocommit": True}
        if not prepare:
            self._options["prepare_threshold"] = None
        self._prepares = prepare
        """Also whether settings are made: behind a pooler, other clients would inherit them."""
        self._settings = _SETTINGS if prepare else ""
        if timeout is not None:
            self._options["connect_timeout"] = max(int(timeout), 2)
            if prepare:
                self._settings += f"; SET statement_timeout = {max(int(timeout * 1000), 1)}"
        self._class = _connection_class(psycopg, timeout, self._count_failure)
        self.where = _describe(psycopg, conninfo)
        self.closed = False
        self.forget()

    def forget(self) -> Any:
        """Forget the pool of a parent process, without closing it, and return it."""
        forgotten = getattr(self, "_pool", None)
        self._pool: Any = None
        self._lock = threading.Lock()
        self._failures = 0
        self._failure: BaseException | None = None
        """The error of the last attempt to connect that failed."""
        return forgotten

    @contextmanager
    def lend(self) -> Iterator[Any]:
        """Lend a connection in autocommit mode to one thread."""
        pool = self._open_pool()
        db = self._take(pool)
        try:
            yield db
        except BaseException as error:
            self.translate(error)
            raise
        finally:
            pool.putconn(db)

    def connect(self) -> Any:
        """Open a connection that does not belong to the pool."""
        self._check_open()
        try:
            db = self._class.connect(self._conninfo, **self._options)
            self._configure(db)
        except self.psycopg.OperationalError as error:
            raise store_error(self.where, error) from error
        return db

    def pipeline(self, db: Any) -> AbstractContextManager[Any]:
        """Return a context in which statements are sent without waiting for each other."""
        supported = self.psycopg.Pipeline.is_supported()
        pipeline: AbstractContextManager[Any] = db.pipeline() if supported else nullcontext()
        return pipeline

    def fetch(
        self, db: Any, statement: str, parameters: Sequence[Any], *, binary: bool = False
    ) -> list[Any]:
        """Return the rows of a statement that may be prepared."""
        try:
            return list(db.execute(statement, parameters, binary=binary).fetchall())
        except self.psycopg.errors.FeatureNotSupported:
            # It was prepared before the type of a column changed, and was not carried out.
            rows = list(db.execute(statement, parameters, binary=binary, prepare=False).fetchall())
            db.close()  # with all that it has prepared; the pool opens another one
            return rows

    def run_one(self, db: Any, begin: str, statement: str, parameters: Sequence[Any]) -> list[Any]:
        """Run one statement, a transaction of its own, in one round trip; return its rows."""
        if self._prepares:
            return self.fetch(db, statement, parameters, binary=True)
        return run_script(db, begin, statement, "COMMIT", literals=parameters)[1]

    def translate(self, error: BaseException) -> None:
        """Raise `StoreError` for an error about the connection, about time or about the schema.

        A `Rollback` comes here only if the connection was lost while it was carried out.
        """
        if isinstance(error, (self.psycopg.OperationalError, self.psycopg.Rollback)):
            raise store_error(self.where, error) from error
        if getattr(error, "sqlstate", None) in _CHANGED:
            raise schema_error(self.where, error) from error

    def close(self) -> None:
        """Close the idle connections; the others are closed when they are returned."""
        with self._lock:
            self.closed = True
            pool = self._pool
        if pool is not None:
            pool.close()

    def asynchronous_pool(self) -> Any:
        """Return a pool of asynchronous connections, which is not open yet."""

        async def configure(db: Any) -> None:
            if self._settings:
                await db.execute(self._settings)

        return self._psycopg_pool.AsyncConnectionPool(
            self._conninfo,
            kwargs=self._options,
            configure=configure,
            min_size=0,
            max_size=self._size,
            timeout=_FOREVER if self.timeout is None else self.timeout,
            reconnect_timeout=0.5,  # the next query tries again
            open=False,
        )

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"the store of {self.where} is closed")

    def _open_pool(self) -> Any:
        pool = self._pool
        if pool is not None and not self.closed:
            return pool
        with self._lock:
            self._check_open()
            if self._pool is None:
                self._pool = self._pool_class(
                    self._conninfo,
                    connection_class=self._class,
                    kwargs=self._options,
                    configure=self._configure,
                    min_size=0,
                    max_size=self._size,
                    reconnect_timeout=0.0,  # the next query tries again
                    num_workers=1,
                    open=True,
                )
            return self._pool

    def _take(self, pool: Any) -> Any:
        """Return a connection of the pool, an idle or a new one."""
        until = time.monotonic() + (_FOREVER if self.timeout is None else self.timeout)
        while True:
            failures = self._failures
            try:
                db = pool.getconn(timeout=min(_PATIENCE, max(until - time.monotonic(), 1e-3)))
            except self._psycopg_pool.PoolTimeout as error:
                if self._failures > failures and self._failure is not None:
                    raise store_error(self.where, self._failure) from self._failure
                if time.monotonic() >= until:
                    raise store_error(self.where, error) from error
                continue
            except self.psycopg.OperationalError as error:  # the pool was closed
                self._check_open()
                raise store_error(self.where, error) from error
            if not _is_dead(db):
                return db
            db.close()
            pool.putconn(db)

    def _configure(self, db: Any) -> None:
        # Of transactions that psycopg begins, whatever the database's default is.
        db.isolation_level = self.psycopg.IsolationLevel.READ_COMMITTED
        db.read_only = False
        if self._settings:
            db.execute(self._settings)

    def _count_failure(self, error: BaseException) -> None:
        self._failure = error
        self._failures += 1


_SETTINGS = (
    "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off"
)
READ = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Isolation is a matter of each transaction: a database may have another default."""


def run_script(db: Any, *statements: str, literals: Sequence[Any] = ()) -> list[list[Any]]:
    """Run statements in one round trip, without a prepared statement; return the rows of each.

    ``literals`` are the values of their parameters, which the driver quotes.
    """
    from psycopg import ClientCursor

    try:
        cursor = ClientCursor(db).execute("; ".join(statements), literals or None)
    except BaseException:
        if not db.closed:
            db.rollback()
        raise
    results = []
    while True:
        results.append(cursor.fetchall() if cursor.description else [])
        if not cursor.nextset():
            return results


def listen(
    connections: Connections,
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
        except (StoreError, connections.psycopg.Error, OSError, ValueError):
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


def _pool_class(psycopg_pool: Any) -> Any:
    """Return a pool class that a forked child leaves alone, as the pool's threads are not there."""

    class Pool(psycopg_pool.ConnectionPool):  # type: ignore[misc]
        _process = 0

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._process = os.getpid()
            super().__init__(*arguments, **options)

        def __del__(self) -> None:
            if self._process == os.getpid():
                super().__del__()

    return Pool


def _is_dead(db: Any) -> bool:
    """Return whether a connection is closed, or the server has sent its last message."""
    if db.closed:
        return True
    poll = select.poll()
    poll.register(db.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _connection_class(
    psycopg: Any, timeout: float | None, failed: Callable[[BaseException], None]
) -> Any:
    """Return a connection class that reports failed attempts and stops waiting after a while.

    The server's own ``statement_timeout`` does not help where the network loses the answer.
    """

    class Reporting(psycopg.Connection):  # type: ignore[misc]
        @classmethod
        def connect(cls, *arguments: Any, **options: Any) -> Any:
            try:
                return super().connect(*arguments, **options)
            except Exception as error:
                failed(error)
                raise

    if timeout is None:
        return Reporting
    # A little later than the server, which says more.
    seconds = timeout + 1.0
    if "timeout" in inspect.signature(psycopg.Connection.wait).parameters:

        class Connection(Reporting):
            def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
                options.setdefault("timeout", seconds)
                try:
                    return super().wait(gen, *arguments, **options)
                except psycopg.errors._WaitTimeout:
                    self.pgconn.finish()  # the state of the server is unknown
                    raise

        return Connection

    class OlderConnection(Reporting):
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
    """Describe the server without user and password."""
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
