"""Which kind of filters to build for sets whose sizes are not known before they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from tamis import _native
from tamis.collection.storage import Hashed, Sets, pairs
from tamis.collection.utility import Utility
from tamis.planning.collection.curves import Floats
from tamis.planning.collection.row_costs import Chosen, choose_kind

MAX_KEYS = 4_000_000
"""Keys that are hashed, 16 bytes each, before a kind is chosen for sets of an iterator."""


def choose_for(
    sets: Sets,
    utility: Utility | None,
    budget: int,
    fpr: float,
    miss_cost: float,
    seed: int,
    key: bytes | None,
) -> tuple[Iterator[tuple[str, Any]], Chosen]:
    """Choose a kind; return all sets, of which the first are hashed already.

    If there are more than `MAX_KEYS` keys, the first sets decide: more sets at the same
    budget have higher rates, of which ribbons have the lower.
    """
    given = pairs(sets, "set")
    seen = list[tuple[Any, Hashed]]()
    total, whole = 0, True
    for name, keys in given:
        if not isinstance(keys, _native.Distinct | _native.Full):
            keys = _native.Distinct(keys, seed, key)
        seen.append((name, keys))
        if isinstance(keys, _native.Full):
            return chain(seen, given), Chosen("auto", "the filters that were given")
        total += len(keys)
        if total > MAX_KEYS:
            whole = False
            break
    counts = np.array([len(keys) for _, keys in seen if isinstance(keys, _native.Distinct)])
    weights = _weights(utility, [name for name, _ in seen]) if whole else np.ones(len(seen))
    chosen = choose_kind(counts.astype(np.int64), weights, budget, fpr=fpr, miss_cost=miss_cost)
    if not whole:
        first = f" (by the first {len(seen):,} sets)"
        chosen = chosen._replace(reason=chosen.reason + first)
    return chain(seen, given), chosen


def _weights(utility: Utility | None, names: list[Any]) -> Floats:
    """Return utilities as far as they can be read; `build` checks them later."""
    try:
        if isinstance(utility, Mapping):
            utility = [utility[name] for name in names]
        weights = np.array(utility, np.float64)
    except (KeyError, TypeError, ValueError):
        weights = np.zeros(0)
    good = weights.shape == (len(names),) and (np.isfinite(weights) & (weights >= 0)).all()
    return weights if good else np.ones(len(names))
