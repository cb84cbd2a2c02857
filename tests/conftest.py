"""How long property tests search: the same examples everywhere, or more of them in `make soak`.

`make test` draws from fixed seeds, so that it passes or fails for everyone alike. `make soak` draws
at random, and prints how to draw a failing example again.
"""

import logging
import random

import pytest
from hypothesis import settings
from soak import SOAK

for _checks in ("filters", "saved", "updates"):
    pytest.register_assert_rewrite(f"tamis.testing.{_checks}")

settings.register_profile("ci", max_examples=60, deadline=None, derandomize=True, database=None)
settings.register_profile("soak", max_examples=3000, deadline=None, print_blob=True)
settings.load_profile("soak" if SOAK else "ci")


@pytest.fixture(autouse=True)
def _seeds_are_fixed(request, monkeypatch):
    """Adaptive filters draw a random seed; here each test draws the same ones every time."""
    if not SOAK:
        monkeypatch.setattr("secrets.randbits", random.Random(request.node.nodeid).getrandbits)


@pytest.fixture(autouse=True)
def _guards_are_heard():
    """Some libraries that tests load silence loggers for all tests after them."""
    logging.disable(logging.NOTSET)
    logger = logging.getLogger("tamis.guard")
    logger.disabled, logger.propagate = False, True
    logger.setLevel(logging.NOTSET)
