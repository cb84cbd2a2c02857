"""Real servers for the tests: started on a free port of the loopback, gone after the session.

Debian's packages ``redis-server``, ``postgresql`` and, for the page of a guard, ``chromium`` and
``chromium-driver``; `.ci/servers` installs them. Where one is
missing its tests are skipped, or fail if ``TAMIS_SERVERS=required``.
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

import pytest


def _program(name):
    found = shutil.which(name) or next(iter(glob.glob(f"/usr/lib/postgresql/*/bin/{name}")), None)
    if found is None:
        message = f"{name} is not installed; .ci/servers installs it"
        if os.environ.get("TAMIS_SERVERS") == "required":
            pytest.fail(message)
        pytest.skip(message)
    return found


def _port():
    """Find a free port; workers that look for one at the same time find different ones."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # Not the last bit: systems prefer odd ports for servers.
        if port // 2 % 32 == worker % 32:
            return port


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


@pytest.fixture
def redis_server(tmp_path):
    """A Redis server of the test's own, which keeps nothing over a restart."""
    redis = pytest.importorskip("redis")
    port = _port()
    command = [_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--save", "", "--dir", str(tmp_path)]
    url = f"redis://127.0.0.1:{port}"

    def ready():
        with redis.Redis.from_url(url) as client:
            client.ping()

    server = Server(command, ready)
    server.url = url
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    redis = pytest.importorskip("redis")
    port = _port()
    command = [_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--save", "", "--dir", str(tmp_path_factory.mktemp("redis"))]
    url = f"redis://127.0.0.1:{port}"

    def ready():
        with redis.Redis.from_url(url) as client:
            client.ping()

    with _running(command, ready):
        yield url


@contextmanager
def _postgres_command():
    """A new database cluster: the command that serves it, and its URL."""
    initdb, postgres, port = _program("initdb"), _program("postgres"), _port()
    url = f"host=127.0.0.1 port={port} user=tamis dbname=postgres"
    # A folder of its own below /tmp: the path to a socket must be short, and open to its owner.
    with TemporaryDirectory(prefix="tamis-postgres-") as folder:
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
        yield [*command, "-c", "listen_addresses=127.0.0.1"], url


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
