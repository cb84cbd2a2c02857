"""Fixtures of the tests of planning."""

import pytest

import tamis


@pytest.fixture(scope="module")
def zipf():
    """The paper's setting."""
    return tamis.Workload.zipf(1.0, universe=10**8, sample=5 * 10**7)
