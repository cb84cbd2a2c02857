"""The example of a service: it starts, answers, shows its metrics and page, and can be loaded."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from servers import postgres_url  # noqa: F401

FOLDER = Path(__file__).parents[2] / "examples" / "service"

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")


@contextmanager
def service(*arguments):
    """The URLs of a service, by name."""
    command = [sys.executable, str(FOLDER / "run.py"), "--port", "0", "--page-port", "0"]
    process = subprocess.Popen(
        [*command, "--users", "500", *arguments], env=os.environ, stdout=subprocess.PIPE, text=True
    )
    try:
        lines = [process.stdout.readline().split() for _ in range(3)]
        yield {line[0]: line[-1] for line in lines}
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert process.returncode == 0


def ask(url, method="GET"):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None


@pytest.mark.parametrize("kind", ["SQLite", "Postgres"])
def test_the_service_answers(kind, request):
    arguments = []
    if kind == "Postgres":
        arguments = ["--database", request.getfixturevalue("postgres_url")]
    with service(*arguments) as urls:
        base = urls["service"].partition("/users/")[0]
        for way in ("/users/", "/unguarded/users/"):
            status, body = ask(f"{base}{way}user7@example.org")
            assert (status, json.loads(body)["name"]) == (200, "User 7")
            assert ask(f"{base}{way}nobody@example.org")[0] == 404
        assert ask(f"{base}/users/new@example.org?name=New", "PUT")[0] == 204
        assert json.loads(ask(f"{base}/users/new@example.org")[1])["name"] == "New"
        # Absent keys read the table if they are false positives or the guard is too far behind.
        for absent in range(20):
            assert ask(f"{base}/users/nobody{absent}@example.org")[0] == 404
        metrics = ask(urls["metrics"])[1]
        saved = re.search(r'tamis_guard_reads_saved_total{guard="users"} (\S+)', metrics)
        assert 1 <= float(saved[1]) <= 21
        data = json.loads(ask(urls["page"] + "data")[1])
        assert (data["stats"]["queries"], data["store"]) == (23, kind)
        load = [sys.executable, str(FOLDER / "load.py"), base, "--requests", "40", "--rounds", "2"]
        done = subprocess.run(
            [*load, "--users", "400"], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        assert [row[:2] for row in rows] == [
            [absent, way] for absent in ("0%", "50%", "95%") for way in ("unguarded", "guarded")
        ]
        assert all(re.fullmatch(r"[\d,.]+", number) for row in rows for number in row[2:])
