"""The classifiers of learned filters: logistic regression, in the sizes that advice tries."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from experiments.arena.grounds import Ground

from tamis.advice.learned import BUCKETS, LEVELS, penalty
from tamis.learned import Model, train

MOST = 20_000
"""Rows of each kind to train with."""


@dataclass(frozen=True)
class Training:
    """Models, the absent rows to plan regions with, and the CPU time that it took."""

    models: list[Model]
    held: Any
    known: np.ndarray
    """The absent rows that were used, by number."""
    nanoseconds: int


_TRAINED: dict[tuple[int, float, int, int], Training] = {}


def trained(ground: Ground, share: float, most: int = MOST, *, seed: int = 1) -> Training:
    """Train on the members and a random share of the absent rows: others for each seed.

    Two thirds of that share train, and one third plans the regions: a plan on rows that the model
    has seen would be too hopeful.
    """
    name = (id(ground), share, most, seed)
    if name not in _TRAINED:
        rng = ground.rng("training", seed)
        known = rng.permutation(ground.others)[: round(share * len(ground.others))]
        cut = 2 * len(known) // 3
        members = rng.permutation(ground.members)[:MOST]
        start = time.process_time_ns()
        inside, outside = ground.read(members), ground.read(known[:cut][:most])
        sizes = (
            [{"buckets": each} for each in BUCKETS]
            if ground.features is None
            else [{"levels": each} for each in LEVELS]
        )
        prior = penalty(len(inside) + len(outside))
        models = [train(inside, outside, kind="logistic", penalty=prior, **size) for size in sizes]
        spent = time.process_time_ns() - start
        _TRAINED[name] = Training(models, ground.read(known[cut:][:most]), known, spent)
    return _TRAINED[name]
