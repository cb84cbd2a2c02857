"""Shared by the tests of filters."""

import tamis
from tamis import _native
from tamis.planning import quotient

KINDS = ("bloom", "quotient")


UNIVERSE = 20_000


SHAPE = tamis.Workload.zipf(1.0, universe=UNIVERSE)


def _version(f):
    return f._state.version


def _quotient(quotients, remainder_bits, capacity):
    return _native.Quotient._empty(quotient.QuotientSize(quotients, remainder_bits), capacity)
