"""Fixtures of the tests of guard."""

import pytest
from stand_in import Prefixes

import tamis


@pytest.fixture
def fresh_stand_in(monkeypatch):
    """Let guards rebuild the stand-in, as they rebuild a native filter from its empty bytes."""
    opened = tamis.guard.opening.from_bytes
    monkeypatch.setattr(
        tamis.guard.opening,
        "from_bytes",
        lambda data, key=None: (
            Prefixes() if data == Prefixes().to_bytes() else opened(data, key=key)
        ),
    )
