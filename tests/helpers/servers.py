"""Real servers for the tests: started on a free port of the loopback, gone after the session.

Debian's packages ``redis-server``, ``postgresql``, ``mariadb-server`` and, for the page of a guard,
``chromium`` and ``chromium-driver``; `.ci/servers` installs them. Where one is missing its tests
are skipped, or fail if ``TAMIS_SERVERS=required``.
"""

import glob
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest


def _program(name):
    found = shutil.which(name) or next(iter(glob.glob(f"/usr/lib/postgresql/*/bin/{name}")), None)
    if found is None:
        message = f"{name} is not installed; .ci/servers installs it"
        if os.environ.get("TAMIS_SERVERS") == "required":
            pytest.fail(message)
        pytest.skip(message)
    return found


def reserve_port():
    """Bind a socket to a free port, which is a server's to listen on until the socket is closed.

    Linux lets two sockets share a port if both have SO_REUSEADDR, as those of the servers have, and
    only one of them listens. It gives the port to nobody else, also while the server is stopped.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def port_of(reserved):
    return reserved.getsockname()[1]


@contextmanager
def _running(command, ready):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            assert process.poll() is None, f"{command[0]} ended by itself"
            try:
                ready()
                break
            except Exception:
                time.sleep(0.05)
        else:
            pytest.fail(f"{command[0]} did not start within 30 s")
        yield process
    finally:
        process.terminate()
        process.wait(30)


class Server:
    """A server that a test stops, kills and starts again, on the same port and with its data."""

    def __init__(self, command, ready, kill=signal.SIGKILL):
        self._command, self._ready, self._kill, self._running = command, ready, kill, None

    def start(self):
        self._running = _running(self._command, self._ready)
        self.pid = self._running.__enter__().pid

    def stop(self):
        """End the server at once, as a crash would."""
        running, self._running = self._running, None
        if running is not None:
            os.kill(self.pid, self._kill)
            running.__exit__(None, None, None)

    def restart(self):
        self.stop()
        self.start()


@contextmanager
def _redis_command(folder):
    """The command of a server that keeps nothing over a restart, its URL, and how to ask for it."""
    redis = pytest.importorskip("redis")
    program = _program("redis-server")
    with reserve_port() as reserved:
        command = [program, "--port", str(port_of(reserved))]
        command += ["--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        url = f"redis://127.0.0.1:{port_of(reserved)}"

        def ready():
            with redis.Redis.from_url(url) as client:
                client.ping()

        yield command, url, ready


@pytest.fixture
def redis_server(tmp_path):
    """A Redis server of the test's own."""
    with _redis_command(tmp_path) as (command, url, ready):
        server = Server(command, ready)
        server.url = url
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("redis")
    with _redis_command(folder) as (command, url, ready), _running(command, ready):
        yield url


@contextmanager
def _postgres_command():
    """A new database cluster: the command that serves it, and its URL."""
    initdb, postgres = _program("initdb"), _program("postgres")
    # A folder of its own below /tmp: the path to a socket must be short, and open to its owner.
    with TemporaryDirectory(prefix="tamis-postgres-") as folder, reserve_port() as reserved:
        port = port_of(reserved)
        user = []
        if os.geteuid() == 0:  # the server refuses to run as root
            user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(folder, "postgres")
        data = f"{folder}/data"
        subprocess.run(
            [*user, initdb, "--auth=trust", "--username=tamis", "--no-sync", "-D", data],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
        )
        command = [*user, postgres, "-D", data, "-p", str(port), "-F", "-k", folder]
        url = f"host=127.0.0.1 port={port} user=tamis dbname=postgres"
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "max_prepared_transactions=20"]
        yield command, url


@pytest.fixture(scope="session")
def postgres_url():
    psycopg = pytest.importorskip("psycopg")
    with (
        _postgres_command() as (command, url),
        _running(command, lambda: psycopg.connect(url).close()),
    ):
        yield url


@pytest.fixture(scope="module")
def postgres_server():
    """A PostgreSQL server that tests stop and start again."""
    psycopg = pytest.importorskip("psycopg")
    with _postgres_command() as (command, url):
        # SIGQUIT ends its processes too, without saving anything.
        server = Server(command, lambda: psycopg.connect(url).close(), signal.SIGQUIT)
        server.url = url
        server.start()
        yield server
        server.stop()


@contextmanager
def _mysql_command():
    """A new data directory of MariaDB: the command that serves it, and the URL of a database."""
    install, program = _program("mariadb-install-db"), _program("mariadbd")
    with TemporaryDirectory(prefix="tamis-mysql-") as folder, reserve_port() as reserved:
        user = []
        if os.geteuid() == 0:  # the server refuses to run as root
            user = ["--user=mysql"]
            shutil.chown(folder, "mysql")
        data = f"--datadir={folder}/data"
        subprocess.run(
            [install, "--no-defaults", *user, data, "--auth-root-authentication-method=normal"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        command = [program, "--no-defaults", *user, data, f"--socket={folder}/socket"]
        # Another server that starts would delete temporary tables in a shared folder.
        command += [f"--tmpdir={folder}"]
        command += [f"--port={port_of(reserved)}", "--bind-address=127.0.0.1"]
        command += ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M"]
        yield command, f"mysql://root@127.0.0.1:{port_of(reserved)}/tamis"


def connect_mysql(url, database="tamis", **options):
    import pymysql

    address = urlsplit(url)
    given = {"host": address.hostname, "port": address.port, "user": address.username}
    given |= {"autocommit": True, "charset": "utf8mb4", "database": database}
    return pymysql.connect(**given | options)


def _create_database(url):
    with connect_mysql(url, None) as db, db.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS tamis CHARACTER SET utf8mb4")


@pytest.fixture(scope="session")
def mysql_url():
    pytest.importorskip("pymysql")
    with (
        _mysql_command() as (command, url),
        _running(command, lambda: _create_database(url)),
    ):
        yield url


@pytest.fixture
def mysql_server():
    """A MariaDB server of the test's own, which it stops and starts again."""
    pytest.importorskip("pymysql")
    with _mysql_command() as (command, url):
        server = Server(command, lambda: _create_database(url))
        server.url = url
        server.start()
        yield server
        server.stop()
