"""Fixtures of the tests of files."""

import pytest

import tamis

# The server is imported by the fixtures: where it is missing, only tests of objects are skipped.


@pytest.fixture(scope="module")
def server():
    from object_store import running

    with running() as s3:
        yield s3


@pytest.fixture
def s3(server, monkeypatch):
    from object_store import environment

    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    server.faults.clear()
    yield server
    server.faults.clear()


@pytest.fixture(scope="module")
def saved(server):
    """A collection of 2.8 MB."""
    from object_store import options_of
    from objects import SETS

    path = "s3://lake/sets.tamis"
    tamis.Collection.build(SETS, path=path, storage_options=options_of(server), kind="ribbon")
    return path
