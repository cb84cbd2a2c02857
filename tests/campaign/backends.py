"""The stores of the campaign: how to start, kill, fill and read each without a guard.

A backend has the arguments of its store's constructor (`store`, `arguments`, `options` and
`limits`), `read()`, and, where others write to the table, `write()` and `remove()`. Guards reach a
server through a `Proxy`, and the supervisor does not.
"""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path

from servers import _program, port_of, reserve_port

from campaign.proxy import Proxy
from tamis.stores.encoding import decode_key, decode_value

TIMEOUT = {"timeout": 1.0}
"""Shorter than some faults, and longer than others."""


def plain(key):
    """Return a key as the history has it: text or an integer."""
    return key.decode() if isinstance(key, bytes) else key


def _decoded(pairs):
    return {
        plain(decode_key(bytes(key))): plain(decode_value(bytes(value))) for key, value in pairs
    }


def _migrate(db):
    """Copy the table, drop it and rename the copy, in a transaction."""
    db.execute("CREATE TABLE copied (name text PRIMARY KEY, body text)")
    db.execute("INSERT INTO copied SELECT * FROM items")
    db.execute("DROP TABLE items")
    db.execute("ALTER TABLE copied RENAME TO items")


class Memory:
    """A store in the memory of the only worker; gone when that is killed."""

    store, arguments, options, limits = "Memory", [], {}, {}
    proxy = server = None
    loses = True

    def __init__(self, folder: Path):
        self.folder = folder

    async def start(self):
        pass

    async def close(self):
        pass


class RocksDB:
    """A folder that one process opens."""

    store, options, limits = "RocksDB", {}, {}
    proxy = server = None
    loses = False

    def __init__(self, folder: Path):
        self.folder = folder
        self.arguments = [str(folder / "rocks")]

    async def start(self):
        import rocksdict  # noqa: F401, the reason to leave this store out

    def read(self):
        import rocksdict

        options, access = rocksdict.Options(raw_mode=True), rocksdict.AccessType.read_only()
        with closing(rocksdict.Rdict(*self.arguments, options, access_type=access)) as db:
            entries = [(k, v) for k, v in db.items(from_key=b"d") if k.startswith(b"d")]
        return _decoded((key[1:], value) for key, value in entries)

    async def close(self):
        pass


class SQLite:
    """A database file of the guard's own table, or of one that others write."""

    store, limits = "SQLite", TIMEOUT
    proxy = server = None
    loses = False

    def __init__(self, folder: Path, *, shared: bool):
        self.folder, self.shared = folder, shared
        self.arguments = [str(folder / "data.db")]
        self.options = {"table": "items", "key": "name", "value": "body"} if shared else {}

    async def start(self):
        if self.shared:
            with self.connect() as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("CREATE TABLE items (name TEXT PRIMARY KEY, body TEXT)")

    def connect(self):
        return closing(sqlite3.connect(*self.arguments, timeout=10, isolation_level=None))

    def read(self):
        with self.connect() as db:
            if self.shared:
                return dict(db.execute("SELECT name, body FROM items"))
            return _decoded(db.execute("SELECT key, value FROM tamis"))

    def write(self, key, value, seconds=0.0):
        """Write a row as a stranger to the guards, and commit after this many seconds."""
        with self.connect() as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT OR REPLACE INTO items VALUES (?, ?)", (key, value))
            time.sleep(seconds)
            db.execute("COMMIT")

    def remove(self, key):
        with self.connect() as db:
            db.execute("DELETE FROM items WHERE name = ?", (key,))

    def migrate(self):
        with self.connect() as db:
            db.execute("BEGIN IMMEDIATE")
            _migrate(db)
            db.execute("COMMIT")

    async def close(self):
        pass


class _Server:
    """A server process that can be killed, stopped and started again, behind a proxy."""

    def __init__(self, command, ready, reserved, *, env, user=None, stop_at_once=signal.SIGKILL):
        """``reserved`` keeps its port until the server is closed."""
        self._command, self._ready, self._env, self._user = command, ready, env, user
        self._reserved = reserved
        self.stop_at_once = stop_at_once
        self.process = None

    async def start(self):
        with suppress(ProcessLookupError):
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        self.process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._env,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
        )
        await self.ready()

    async def ready(self):
        """Wait until the server answers; restart it if it has exited."""
        last = None
        for _ in range(600):
            if self.process.poll() is not None:
                return await self.start()
            try:
                return await asyncio.to_thread(self._ready)
            except Exception as error:
                last = error
                await asyncio.sleep(0.03)
        raise RuntimeError(f"{self._command[0]} does not answer: {last}")

    def signal(self, number):
        """Send a signal to the server and the processes that it started."""
        if self.process is None or self.process.poll() is not None:
            return
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in [self.process.pid, *map(int, children.read_text().split())]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self):
        """End the server, also in the middle of a fault, and without giving up control."""
        self._reserved.close()
        self.signal(signal.SIGCONT)
        if self.process is not None:
            self.process.send_signal(self.stop_at_once)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    async def end(self, number):
        """End the server by a signal, and wait until it is gone."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        await asyncio.to_thread(self.process.wait)


class Redis:
    """A Redis server: ``persistence`` is "none", "aof" (nothing is lost) or "rdb" (a second is)."""

    store, limits = "Redis", TIMEOUT

    def __init__(self, folder: Path, env: dict, *, persistence: str):
        self.folder, self.options = folder, {}
        self.loses = persistence != "aof"
        self.rolls_back = persistence == "rdb"
        program, reserved = _program("redis-server"), reserve_port()
        self.port = port_of(reserved)
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(folder), "--save", "1 1" if persistence == "rdb" else ""]
        if persistence == "aof":
            command += ["--appendonly", "yes", "--appendfsync", "always"]
        self.server = _Server(command, self._ping, reserved, env=env)
        self.proxy = Proxy(self.port)

    async def start(self):
        await self.server.start()
        await self.proxy.start()
        self.arguments = [f"redis://127.0.0.1:{self.proxy.port}"]

    def connect(self):
        import redis

        return closing(redis.Redis(port=self.port, socket_timeout=10))

    def _ping(self):
        with self.connect() as client:
            client.ping()

    def read(self):
        with self.connect() as client:
            return _decoded(client.hgetall("{tamis}:d").items())

    def flush(self):
        with self.connect() as client:
            client.flushall()

    def parts(self):
        """Return the Redis keys that make up the store."""
        with self.connect() as client:
            return sorted(key.decode() for key in client.keys("{tamis}:*"))

    def evict(self, part):
        with self.connect() as client:
            client.unlink(part)

    async def close(self):
        self.server.close()
        await self.proxy.close()


class Postgres:
    """A PostgreSQL server with the guard's own table, or one that others write."""

    store, limits = "Postgres", TIMEOUT
    loses = False

    def __init__(self, folder: Path, env: dict, *, shared: bool):
        self.folder, self.shared = folder, shared
        self.options = {"table": "items", "key": "name", "value": "body"} if shared else {}
        self._user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        self._initdb, postgres = _program("initdb"), _program("postgres")
        reserved = reserve_port()
        self.port = port_of(reserved)
        command = [postgres, "-D", f"{folder}/pg", "-p", str(self.port), "-F", "-k", ""]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "max_wal_size=16MB"]
        # Of an "immediate" shutdown, after which the server has to recover. Killed, it would leave
        # processes behind that keep it from starting again.
        self.server = _Server(
            command, self._ask, reserved, env=env, user=self._user, stop_at_once=signal.SIGQUIT
        )
        self.proxy = Proxy(self.port)

    async def start(self):
        if self._user:
            shutil.chown(self.folder, self._user)
        initdb = [self._initdb, "--auth=trust", "--username=tamis", "--no-sync", "--wal-segsize=1"]
        await asyncio.to_thread(
            subprocess.run,
            [*initdb, "-D", f"{self.folder}/pg"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self._user,
            cwd=self.folder,
        )
        await self.server.start()
        await self.proxy.start()
        where = f"host=127.0.0.1 port={self.proxy.port} user=tamis dbname=postgres"
        self.arguments = [where]
        if self.shared:
            with self.connect() as db:
                db.execute("CREATE TABLE items (name text PRIMARY KEY, body text)")

    def connect(self):
        import psycopg

        return closing(
            psycopg.connect(
                f"host=127.0.0.1 port={self.port} user=tamis dbname=postgres connect_timeout=5",
                autocommit=True,
            )
        )

    def _ask(self):
        with self.connect() as db:
            db.execute("SELECT 1")

    def read(self):
        with self.connect() as db:
            if self.shared:
                return dict(db.execute("SELECT name, body FROM items").fetchall())
            return _decoded(db.execute("SELECT key, value FROM tamis").fetchall())

    def write(self, key, value, seconds=0.0):
        """Write a row as a stranger to the guards, and commit after this many seconds."""
        with self.connect() as db, db.transaction():
            db.execute(
                "INSERT INTO items VALUES (%s, %s) ON CONFLICT (name) "
                "DO UPDATE SET body = excluded.body",
                (key, value),
            )
            time.sleep(seconds)

    def remove(self, key):
        with self.connect() as db:
            db.execute("DELETE FROM items WHERE name = %s", (key,))

    def migrate(self):
        with self.connect() as db, db.transaction():
            db.execute("LOCK TABLE items")  # so that no row is written after it was copied
            _migrate(db)

    def backends(self):
        """Return the processes that serve guards."""
        with self.connect() as db:
            rows = db.execute(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
                "AND pid <> pg_backend_pid() ORDER BY pid"
            )
            return [pid for (pid,) in rows.fetchall()]

    def busy(self):
        """Return the transactions under way: their client may be gone."""
        with self.connect() as db:
            rows = db.execute(
                "SELECT state, wait_event, left(query, 60) FROM pg_stat_activity WHERE state <> "
                "'idle' AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            return rows.fetchall()

    async def close(self):
        self.server.close()
        await self.proxy.close()
