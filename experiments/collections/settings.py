"""What the experiments on collections share: sets of many sizes, with utilities."""

from __future__ import annotations

from typing import Any

import numpy as np

import tamis
from tamis.planning.collection.allocation import bloom_size

RATE = 1e-4  # of a full Bloom filter, as in the paper
UTILITIES = {"uniform": 0, "lognormal(0, 1)": 1, "lognormal(0, 2)": 2}


def setting(filters: int, spread: float, seed: int = 0) -> tuple[Any, Any, int]:
    """Return set sizes, utilities, and the bits of the full Bloom filters.

    Sizes are 10 + lognormal(7, 0.7); utilities are lognormal(0, spread), or uniform without spread.
    """
    rng = np.random.default_rng(seed)
    keys = (10 + rng.lognormal(7, 0.7, filters)).astype(np.int64)
    utility = rng.lognormal(0, spread, filters) if spread else rng.uniform(0, 1, filters)
    return keys, utility, int(bloom_size(keys, RATE)[0].sum())


def disjoint(keys: Any) -> Any:
    """Yield disjoint sets of these sizes, by name."""
    starts = np.concatenate([[0], np.cumsum(keys)])
    return ((str(i), np.arange(starts[i], starts[i + 1])) for i in range(len(keys)))


def rate(keys: Any, utility: Any, budget: int, kind: str, method: str = "optimal") -> float:
    """Return the predicted weighted rate of an allocation."""
    plan = tamis.plan_collection(keys, utility, budget=budget, kind=kind, method=method)
    return plan.expected_fpr
