"""Real servers for the tests: started on a free port of the loopback, gone after the session.

Debian's packages ``redis-server`` and ``postgresql``; `.ci/servers` installs them. Where one is
missing its tests are skipped, or fail if ``TAMIS_SERVERS=required``.
"""

import glob
import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


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
        yield
    finally:
        process.terminate()
        process.wait(30)


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


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory):
    psycopg = pytest.importorskip("psycopg")
    initdb, postgres, port = _program("initdb"), _program("postgres"), _port()
    folder = tmp_path_factory.mktemp("postgres")
    user = []
    if os.geteuid() == 0:
        # The server refuses to run as root; the path to its folder must be open to its user.
        user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres")
        for parent in list(folder.parents)[:3]:
            if parent.owner() == "root" and parent.name.startswith("pytest"):
                parent.chmod(0o755)
    data = folder / "data"
    subprocess.run(
        [*user, initdb, "--auth=trust", "--username=tamis", "--no-sync", "-D", str(data)],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
    )
    command = [*user, postgres, "-D", str(data), "-p", str(port), "-F", "-k", str(folder)]
    command += ["-c", "listen_addresses=127.0.0.1"]
    url = f"host=127.0.0.1 port={port} user=tamis dbname=postgres"
    with _running(command, lambda: psycopg.connect(url).close()):
        yield url
