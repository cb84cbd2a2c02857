"""Equal rates in all layers, for layers of any rate: a grid search over rates and depths.

With one rate α, EFPR, EFPB and the checks rise with α, and the size has one minimum (Theorem 2 of
Deeds, Hentschel and Idreos 2021). The grid needs neither: it holds every metric of every depth for
all its rates at once, and only their mixture depends on the number of negatives.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tamis.planning.kinds import KINDS
from tamis.planning.stacked import metrics
from tamis.planning.stacked.goal import FLOOR, Goal, Stack
from tamis.planning.stacked.metrics import Array, Checks
from tamis.planning.stacked.sweep import Search

DEPTHS = (3, 5, 7)
"""Numbers of layers. Two more could change the answer of at most α⁴ of the queries."""

# Rates of the grid: about half a percent from one to the next. `realize` uses the rest of a budget.
_POINTS = 1024
_LARGEST = 0.9


class _Grid(NamedTuple):
    """Metrics by depth (rows) and rate (columns)."""

    rates: Array
    size: Array
    keys: Array
    negatives: Array
    frequent: Array
    infrequent: Array
    checks: Checks


def search_for(kind: str) -> Search:
    """Return the search for the best stack of layers of this kind, all of one rate."""

    def search(goal: Goal, negatives: int, psi: float, cutoff: float = math.inf) -> Stack | None:
        least = goal.fpr / 4
        if not goal.minimizes_bits:
            least = max(KINDS[kind].rate_of_bits(goal.budget / goal.keys) / 2, FLOOR)
        grid = _grid(kind, 2.0 ** math.floor(math.log2(least)))
        found = _best(kind, goal, negatives, psi, grid)
        return found if found and goal.score(found) < cutoff else None

    return search


@lru_cache(maxsize=8)
def _grid(kind: str, least: float) -> _Grid:
    rates = np.geomspace(least, _LARGEST, _POINTS)
    size = KINDS[kind].bits_per_item(rates)
    depths = np.array(DEPTHS)[:, None]
    checks = [metrics.checks(np.repeat(rates[:, None], depth, axis=1)) for depth in DEPTHS]
    return _Grid(
        rates,
        size,
        size * metrics.equal_size(rates, depths, 0.0),
        size * (metrics.equal_size(rates, depths, 1.0) - metrics.equal_size(rates, depths, 0.0)),
        metrics.equal_rate(rates, depths, 1.0),
        metrics.equal_rate(rates, depths, 0.0),
        Checks(*(np.array(parts) for parts in zip(*checks, strict=True))),
    )


def _best(kind: str, goal: Goal, negatives: int, psi: float, grid: _Grid) -> Stack | None:
    bits = goal.keys * grid.keys + negatives * grid.negatives
    rate = psi * grid.frequent + (1 - psi) * grid.infrequent
    allowed = goal.allowed(rate, grid.infrequent, psi, grid.checks, bits)
    cost = goal.cost(rate, psi, grid.checks, kind)
    scores = np.where(allowed, goal.objective(bits, cost), math.inf)
    row, column = divmod(int(scores.argmin()), scores.shape[1])
    if math.isinf(scores[row, column]):
        return None
    rates = (float(grid.rates[column]),) * DEPTHS[row]
    return Stack(
        kind, negatives, psi, rates, (), False, float(bits[row, column]), float(cost[row, column])
    )
