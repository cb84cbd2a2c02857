"""Methods to compare the optimum with, from Mersy, Wang, Sintos, Krishnan 2024.

Their two relaxations of the problem, for Bloom filters, and the baselines of their evaluation. Each
takes filters, utilities and a budget in bits, and returns the bits to keep of each filter.
"""

from __future__ import annotations

import math

import numpy as np

from tamis.planning.collection.curves import Exponential, Floats, Ints, Mixed, Segmented, Truncated
from tamis.planning.collection.prices import optimal

LEVELS = 7
"""Sizes of a filter in the elastic baseline, including none and all."""


def relaxation(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Minimize Jensen's lower bound w^(k·m'/m) (Eq. 4), rounded down as the paper does."""
    part = _bloom(mixed, "relaxation")
    zeros = np.exp(part.hashes * part.keys * np.log1p(-1 / np.maximum(part.bits, 2)))
    decay = -np.log1p(-zeros) * part.hashes / np.maximum(part.bits, 1)
    return optimal(Exponential(part.bits, decay), utility, budget)


def further_relaxation(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Minimize 0.618^(m'/n): the relaxation for filters with the optimal number of probes."""
    part = _bloom(mixed, "further relaxation")
    decay = math.log(2) ** 2 / np.maximum(part.keys, 1)
    return optimal(Exponential(part.bits, decay), utility, budget)


def _bloom(mixed: Mixed, method: str) -> Truncated | Segmented:
    if len(mixed.parts) == 1 and isinstance(mixed.parts[0][1], Truncated | Segmented):
        return mixed.parts[0][1]
    raise ValueError(f"method {method!r} needs kind 'truncated' or 'segmented'")


def untruncated(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Keep everything, regardless of the budget."""
    return mixed.bits


def proportional(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Cut every filter to the same fraction."""
    bits = mixed.bits
    total = int(bits.sum())
    if total <= budget:
        return bits
    cut: Ints = np.floor(bits * (budget / total)).astype(np.int64)
    return cut


def top_utility(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Keep full filters, the most queried first, and skip filters that do not fit."""
    bits, kept = mixed.bits, np.zeros(len(utility), np.int64)
    order, left = np.argsort(-utility, kind="stable"), budget
    while len(order):
        count = int(np.searchsorted(np.cumsum(bits[order]), left, side="right"))
        fitting, order = order[:count], order[count:]
        kept[fitting] = bits[fitting]
        left -= int(bits[fitting].sum())
        order = order[bits[order] <= left]
    return kept


def greedy(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Keep filters by utility per key: the paper's linear relaxation."""
    full = mixed.bits
    order = np.argsort(-utility / np.maximum(full, 1), kind="stable")
    kept = np.zeros(len(full), np.int64)
    ends = np.cumsum(full[order])
    count = int(np.searchsorted(ends, budget, side="right"))
    kept[order[:count]] = full[order[:count]]
    if count < len(order):
        kept[order[count]] = budget - (int(ends[count - 1]) if count else 0)
    return kept


def elastic(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Fill caches of equal size with 6/6, 5/6, … of each filter, the most queried first."""
    bits = mixed.bits
    total, units = int(bits.sum()), LEVELS - 1
    kept = np.zeros(len(bits), np.int64)
    if total <= budget:
        return bits
    caches = max(1, math.ceil((1 - budget / total) * units))
    order = np.argsort(-utility, kind="stable")
    for level in range(units, units - caches, -1):
        size = bits[order] * level // units
        count = int(np.searchsorted(np.cumsum(size), budget // caches, side="right"))
        kept[order[:count]] = size[:count]
        order = order[count:]
    return kept
