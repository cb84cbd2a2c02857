"""Shared by the tests of collection."""

import math

import numpy as np

import tamis

SIZES = [0, 1, 2, 3, 10, 100, 300, 1000, 5000]


def sets(sizes=SIZES):
    """Disjoint sets of these sizes."""
    start = 0
    for i, size in enumerate(sizes):
        yield f"set {i}", np.arange(start, start + size)
        start += size


def share(collection, part):
    """The budget that leaves this share of all bits."""
    full = int(collection.full.sum())
    return collection.min_budget + math.ceil(part * full / 8)


def golden_collection():
    """One filter of each kind, an empty one, and a ribbon with a level that bumps."""
    c = tamis.Collection.build({"ribbon": range(100), "none": []}, seed=42, fpr=0.01)
    for kind in ("segmented", "truncated"):
        c.append(kind, range(50), kind=kind, utility=2.5, fpr=0.01)
    c.append("levels", range(4200), fpr=0.05)
    return c


WORDS = ["anchor", "bell", "crane", "dial", "ember", "flint", "gauge", "hinge", "ingot", "kiln"]
"""Words of the documents of search indexes."""
