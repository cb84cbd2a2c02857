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
from tamis.planning.collection.kind_costs import KindChoice, choose_kind

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
) -> tuple[Iterator[tuple[str, Any]], KindChoice]:
    """Choose a kind; return all sets, of which the first are hashed already.

    The kind must be known before the filters are built, so the rates are planned with an estimated
    overhead. Once they are built, `plan_prefixes` plans again with exact sizes, which takes about
    1 % of the time of the build.
    If there are more than `MAX_KEYS` keys, the first sets decide. More sets in the same budget have
    higher rates, where ribbons are better.
    """
    given = pairs(sets, "set")
    seen = list[tuple[Any, Hashed]]()
    total, complete = 0, True
    for name, keys in given:
        if not isinstance(keys, _native.Distinct | _native.Full):
            keys = _native.Distinct(keys, seed, key)
        seen.append((name, keys))
        if isinstance(keys, _native.Full):
            return chain(seen, given), KindChoice("auto", "the filters that were given")
        total += len(keys)
        if total > MAX_KEYS:
            complete = False
            break
    counts = np.array([len(keys) for _, keys in seen if isinstance(keys, _native.Distinct)])
    weights = _weights(utility, [name for name, _ in seen]) if complete else np.ones(len(seen))
    choice = choose_kind(counts.astype(np.int64), weights, budget, fpr=fpr, miss_cost=miss_cost)
    if not complete:
        first = f" (by the first {len(seen):,} sets)"
        choice = choice._replace(reason=choice.reason + first)
    return chain(seen, given), choice


def _weights(utility: Utility | None, names: list[Any]) -> Floats:
    """Return utilities, or ones if they are not valid: `build` checks them later."""
    try:
        if isinstance(utility, Mapping):
            utility = [utility[name] for name in names]
        weights = np.array(utility, np.float64)
    except (KeyError, TypeError, ValueError):
        weights = np.zeros(0)
    good = weights.shape == (len(names),) and (np.isfinite(weights) & (weights >= 0)).all()
    return weights if good else np.ones(len(names))
