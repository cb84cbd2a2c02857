"""Connections of `tamis.stores.MySQL`: idle ones are kept for the next thread that needs one.

Each connection sets what it relies on: READ COMMITTED, in which a statement sees what was committed
when it began, a strict SQL mode, UTC, and several statements per round trip.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from tamis.errors import StoreError
from tamis.stores.base import check_address, schema_error, store_error
from tamis.stores.connections import ADDRESS_OF, read_address

T = TypeVar("T")

NO_TABLE, NO_TRIGGER, NO_PRIVILEGE, DEADLOCK, LOCK_WAIT = 1146, 1360, 1227, 1213, 1205
_CHANGED = {1044, 1049, 1054, 1072, 1091, 1142, 1143, NO_TABLE, 1305, NO_TRIGGER, 1370, 1412}
"""Errors: a database, table, column, index, trigger or privilege is missing, or was changed."""

_OPTIONS = {
    "unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity",
}  # fmt: skip
"""Options of PyMySQL that a URL may have."""


def connection_fields(database: Any) -> dict[str, Any]:
    """Return where a database is, given by a URL, an SQLAlchemy engine or Django."""
    dialect = getattr(getattr(database, "dialect", None), "name", "mysql")
    address = read_address(database, dialect if dialect == "mariadb" else "mysql")
    if address is None:
        return _from_url(check_address("url", database, str, f"a URL, {ADDRESS_OF}"))
    fields = dict(address.fields)
    if address.name:
        fields["database"] = address.name
    fields |= {name: value for name, value in address.options.items() if name in _OPTIONS}
    return _checked(fields)


def _from_url(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        known = parts.scheme.partition("+")[0] in ("mysql", "mariadb") and parts.path.strip("/")
        fields: dict[str, Any] = {
            "host": parts.hostname,
            "port": parts.port,
            "user": parts.username and unquote(parts.username),
            "password": parts.password and unquote(parts.password),
            "database": unquote(parts.path.strip("/")),
        }
    except ValueError:
        known = ""
    if not known:  # the URL may contain the password
        raise ValueError("url must be a URL such as 'mysql://user:password@localhost:3306/shop'")
    fields |= {name: value for name, value in parse_qsl(parts.query) if name in _OPTIONS}
    return _checked({name: value for name, value in fields.items() if value})


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    if not fields.get("database"):
        raise ValueError("url must name a database, as in 'mysql://user@localhost/shop'")
    return fields | {"port": int(fields.get("port") or 3306)}


class Connections:
    """Connections to one database. ``timeout`` limits each wait: to connect, or for an answer."""

    def __init__(self, fields: dict[str, Any], size: int, timeout: float | None) -> None:
        try:
            import pymysql
        except ImportError:
            raise ImportError(
                "tamis.stores.MySQL needs PyMySQL: pip install tamis[mysql]"
            ) from None
        self.pymysql: Any = pymysql
        self.timeout, self.database = timeout, fields["database"]
        self._fields, self._size = fields, size
        self.where = f"MySQL at {fields.get('host', 'localhost')}:{fields['port']}"
        self.closed = False
        self.forget()

    @property
    def seconds(self) -> float:
        """How long to try again."""
        return 1e6 if self.timeout is None else self.timeout

    def forget(self) -> list[Any]:
        """Forget the connections of a parent process, without closing them, and return them."""
        forgotten = getattr(self, "_idle", [])
        self._idle: list[Any] = []
        self._free = threading.BoundedSemaphore(self._size)
        return forgotten

    @contextmanager
    def lend(self) -> Iterator[Any]:
        """Lend a connection in autocommit mode to one thread."""
        if not self._free.acquire(timeout=self.timeout):
            raise StoreError(f"{self.where} took too long: all connections are in use")
        try:
            db = self._take()
            try:
                with self.translated():
                    yield db
            except BaseException:
                db.close()  # its state is unknown
                raise
            if self.closed:
                db.close()
            else:
                self._idle.append(db)
        finally:
            self._free.release()

    def connect(self) -> Any:
        """Open a connection that is not kept."""
        if self.closed:
            raise ValueError(f"the store of {self.where} is closed")
        waits = {} if self.timeout is None else {"read_timeout": self.timeout + 1}
        if self.timeout is not None:
            waits |= {"write_timeout": self.timeout + 1, "connect_timeout": max(self.timeout, 1)}
            waits["connect_timeout"] = min(int(waits["connect_timeout"]), 31536000)
        seconds = min(max(int(self.timeout or 1e6), 1), 31536000)
        with self.translated():
            db = self.pymysql.connect(
                **self._fields,
                **waits,
                charset="utf8mb4",
                autocommit=True,
                client_flag=self.pymysql.constants.CLIENT.MULTI_STATEMENTS,
            )
            run(
                db,
                "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
                "SET SESSION sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00', "
                f"innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}",
            )
        return db

    def close(self) -> None:
        """Close the idle connections; the others are closed when they are returned."""
        self.closed = True
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate errors about the connection, about time or about the schema to `StoreError`."""
        errors = self.pymysql.err
        try:
            yield
        except (errors.OperationalError, errors.InterfaceError, OSError) as error:
            if isinstance(error, StoreError):
                raise
            if code_of(error) in _CHANGED:
                raise schema_error(self.where, error) from error
            raise store_error(self.where, _without_user(error)) from error
        except (errors.ProgrammingError, errors.InternalError) as error:
            if code_of(error) in _CHANGED:
                raise schema_error(self.where, error) from error
            raise

    def _take(self) -> Any:
        while self._idle and not self.closed:
            db = self._idle.pop()
            if not _is_dead(db):
                return db
            db.close()
        return self.connect()


def run(db: Any, *statements: str) -> list[Any]:
    """Run statements in one round trip; return the rows of each."""
    with db.cursor() as cursor:
        cursor.execute(";".join(statements))
        answers = [cursor.fetchall()]
        while cursor.nextset():
            answers.append(cursor.fetchall())
        return answers


def query(db: Any, statement: str, arguments: Any = ()) -> Any:
    """Run a statement and return its rows."""
    with db.cursor() as cursor:
        cursor.execute(statement, arguments)
        return cursor.fetchall()


@contextmanager
def transaction(db: Any) -> Iterator[Any]:
    """Run the statements inside in one transaction."""
    db.begin()
    try:
        yield db
    except BaseException:
        if db.open:
            db.rollback()
        raise
    db.commit()


def retry_deadlocks(write: Callable[[], T]) -> T:
    """Call a function that writes in one transaction, again if it deadlocked with others."""
    for _ in range(4):
        try:
            return write()
        except StoreError as error:
            if code_of(error.__cause__) != DEADLOCK:
                raise
    return write()


def is_maria(db: Any) -> bool:
    """Return whether the server is MariaDB."""
    return "MariaDB" in db.get_server_info()


def code_of(error: BaseException | None) -> int | None:
    """Return the number of a server's error."""
    code = error.args[0] if error is not None and error.args else None
    return code if isinstance(code, int) else None


def _without_user(error: BaseException) -> BaseException:
    """Return the error without the name of the user, which the server repeats if it refuses one."""
    return Exception("access denied") if code_of(error) == 1045 else error


def _is_dead(db: Any) -> bool:
    """Return whether a connection is closed, or the server has sent its last message."""
    if not db.open:
        return True
    poll = select.poll()
    poll.register(db._sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))
