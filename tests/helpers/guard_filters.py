"""Shared by the tests of guard."""

from stand_in import tiny

import tamis


def quotient():
    return tamis.Quotient(capacity=200, fpr=2**-3)


def telescoping():
    """Small enough to have to grow."""
    return tamis.Telescoping(capacity=4, fpr=2**-3, seed=3)


def adaptive_cuckoo():
    """It keeps the hashes of its keys itself and does not need the store's index."""
    return tamis.AdaptiveCuckoo(capacity=200, fpr=2**-3, seed=3)


def adaptive_stacked():
    """So coarse that it has many false positives, and so small that it soon grows."""
    return tiny("quotient", capacity=5, seed=3)
