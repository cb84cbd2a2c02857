"""Fixtures of the tests of files."""

import pytest
from object_store import environment, options_of, running
from objects import SETS

import tamis


@pytest.fixture(scope="module")
def server():
    with running() as s3:
        yield s3


@pytest.fixture
def s3(server, monkeypatch):
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    server.faults.clear()
    yield server
    server.faults.clear()


@pytest.fixture(scope="module")
def saved(server):
    """A collection of 2.8 MB."""
    path = "s3://lake/sets.tamis"
    tamis.Collection.build(SETS, path=path, storage_options=options_of(server), kind="ribbon")
    return path
