"""Stacks of layers of any rate: equal rates first, then a rate of its own for each layer.

*Equal rates* are a grid search over rates and depths (`search_equal`). With one rate α, EFPR, EFPB
and the checks rise with α, and the size has one minimum (Theorem 2 of Deeds, Hentschel and Idreos
2021). The grid needs neither: it holds every metric of every depth for all its rates at once, and
only their mixture depends on the number of negatives.

*Varied rates* are a general search, together with the number of negatives (`vary_rates`). Neither
the rate nor the size is convex in the rates of the layers, so a global search comes first:
differential evolution from the best stack of equal rates, one generation at a time. A local search
(SLSQP) then ends at the constraints. Deeds, Hentschel and Idreos 2020, 5.1 do the same with ISRES
and COBYLA, for a given number of negatives. The variables are log2(1/α) of each layer and the
logarithm of the number of negatives, which may be a fraction during the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tamis.planning.kinds import KINDS
from tamis.planning.stacked import predictions
from tamis.planning.stacked.frequencies import Frequencies
from tamis.planning.stacked.goal import FLOOR, Goal, Stack
from tamis.planning.stacked.predictions import Array, Checks
from tamis.planning.stacked.sweep import Search, better

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


def search_equal(kind: str) -> Search:
    """Return the search for the best stack of layers of this kind, all of one rate."""

    def search(goal: Goal, negatives: int, psi: float, cutoff: float = math.inf) -> Stack | None:
        lowest = goal.fpr / 4
        if not goal.minimizes_bits:
            lowest = max(KINDS[kind].rate_of_bits(goal.budget / goal.keys) / 2, FLOOR)
        grid = _grid(kind, 2.0 ** math.floor(math.log2(lowest)))
        found = _best(kind, goal, negatives, psi, grid)
        return found if found and goal.score(found) < cutoff else None

    return search


@lru_cache(maxsize=8)
def _grid(kind: str, lowest: float) -> _Grid:
    rates = np.geomspace(lowest, _LARGEST, _POINTS)
    size = KINDS[kind].bits_per_item(rates)
    depths = np.array(DEPTHS)[:, None]
    checks = [predictions.checks(np.repeat(rates[:, None], depth, axis=1)) for depth in DEPTHS]
    return _Grid(
        rates,
        size,
        size * predictions.equal_size(rates, depths, 0.0),
        size
        * (predictions.equal_size(rates, depths, 1.0) - predictions.equal_size(rates, depths, 0.0)),
        predictions.equal_rate(rates, depths, 1.0),
        predictions.equal_rate(rates, depths, 0.0),
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


DEPTH = 7
"""Layers of a stack of varied rates: two more change the rate by less than one percent."""

_COARSEST, _FINEST = 0.02, 40.0  # log2(1/α), or finer where equal rates are
_GENERATIONS = 60
_MEMBERS = 7  # per variable
_PENALTY = 100.0
_STEP = 1e-6
_ITERATIONS = 200
_RANKS = 200  # numbers of negatives, and rates of the others, for a lower bound


def vary_rates(stack: Stack, goal: Goal, curve: Frequencies) -> Stack:
    """Vary the rates of a stack of equal rates; the result is at least as good."""
    from scipy.optimize import differential_evolution

    problem = _Problem(stack.kind, goal, curve)
    start = np.full(DEPTH + 1, -math.log2(stack.rates[0]))
    start[-1] = math.log(stack.negatives)
    finest = max(_FINEST, start[0] + 1)
    bounds = [(_COARSEST, finest)] * DEPTH + [(0.0, math.log(curve.size))]
    evolved = differential_evolution(
        lambda members: problem.penalized(members.T),
        bounds,
        x0=start,
        maxiter=_GENERATIONS,
        popsize=_MEMBERS,
        polish=False,
        rng=0,
        updating="deferred",
        vectorized=True,
    )
    best: Stack | None = stack
    for point in (start, evolved.x):
        best = better(best, problem.stack(problem.polished(point, bounds)), goal)
    assert best is not None
    return best


def worthwhile(kind: str, goal: Goal, curve: Frequencies, best: Stack) -> bool:
    """Whether layers of this kind and any rates could beat a stack, by their information.

    A filter that accepts all keys, a share φ of n known negatives and ε of all others takes at
    least log2(1/ε) + n/|P|·d(φ‖ε) bits per key, d being the relative entropy, times the overhead
    of the kind. Between two numbers of negatives it takes no less than with the
    fewer negatives and the larger ψ.
    """
    if goal.check_cost or any(goal.penalties):
        return True
    rate = goal.fpr if goal.minimizes_bits else best.expected_fpr
    if rate <= FLOOR:
        return False
    ranks = np.unique(np.geomspace(1, curve.size, _RANKS).astype(np.int64))
    psi = np.clip(np.asarray(curve.psi(ranks), float), 0.0, 1 - 1e-12)[1:, None]
    highest = np.minimum(rate / (1 - psi), 1 - 1e-9)
    unknown = highest * np.geomspace(1e-4, 1, _RANKS)
    known = np.clip((rate - (1 - psi) * unknown) / np.maximum(psi, 1e-300), 1e-300, unknown)
    entropy = known * np.log2(known / unknown)
    entropy += (1 - known) * (np.log1p(-known) - np.log1p(-unknown)) / math.log(2)
    fewest_bits = ranks[:-1, None] * entropy - goal.keys * np.log2(unknown)
    bits = best.bits if goal.minimizes_bits else goal.budget
    return bool(fewest_bits.min(initial=math.inf) * KINDS[kind].overhead < bits)


@dataclass(frozen=True)
class _Problem:
    kind: str
    goal: Goal
    curve: Frequencies

    def measured(self, points: Array) -> tuple[Array, Array, Array]:
        """Return bits, cost and constraints of each point; a constraint holds if at least 0."""
        goal = self.goal
        rates, negatives = np.exp2(-points[..., :-1]), np.exp(points[..., -1])
        psi = np.asarray(self.curve.psi(negatives))
        bits = (
            predictions.items(rates, goal.keys, negatives) * KINDS[self.kind].bits_per_item(rates)
        ).sum(axis=-1)
        expected, bound = predictions.expected_rate(rates, psi), predictions.infrequent_rate(rates)
        checks = predictions.checks(rates)
        cost = goal.cost(expected, psi, checks, self.kind)
        kept = [
            np.log(limit / value)
            for value, limit in (
                (bits, goal.budget),
                (expected, goal.fpr),
                (bound, goal.max_fpr_bound),
                (goal.mean_checks(psi, checks), goal.max_checks),
            )
            if limit < math.inf
        ]
        return np.asarray(bits), np.asarray(cost), np.stack(kept, axis=-1)

    def score(self, points: Array) -> Array:
        """The logarithm of the objective."""
        bits, cost, _ = self.measured(points)
        return np.asarray(np.log(self.goal.objective(bits, cost)))

    def kept(self, points: Array) -> Array:
        """The constraints."""
        return self.measured(points)[2]

    def penalized(self, points: Array) -> Array:
        """Return the score, with a penalty for violated constraints."""
        broken = np.maximum(-self.kept(points), 0.0).sum(axis=-1)
        return np.asarray(self.score(points) + _PENALTY * broken)

    def polished(self, point: Array, bounds: list[tuple[float, float]]) -> Array:
        """Minimize from a point, within the constraints."""
        from scipy.optimize import minimize

        found = minimize(
            self.score,
            point,
            method="SLSQP",
            jac=_slopes(self.score),
            bounds=bounds,
            constraints={"type": "ineq", "fun": self.kept, "jac": _slopes(self.kept)},
            options={"maxiter": _ITERATIONS, "ftol": 1e-7},
        )
        return np.asarray(np.clip(found.x, *np.transpose(bounds)))

    def stack(self, point: Array) -> Stack | None:
        """Return the stack at a point, or None if a constraint is violated.

        The number of negatives is rounded. The budget and the rate may be missed by a little, which
        `realize` corrects.
        """
        negatives = min(max(1, round(math.exp(point[-1]))), self.curve.size)
        point = np.append(point[:-1], math.log(negatives))
        bits, cost, kept = self.measured(point)
        if kept.min() < -1e-3:
            return None
        rates = tuple(np.exp2(-point[:-1]).tolist())
        psi = float(self.curve.psi(negatives))
        return Stack(self.kind, negatives, psi, rates, (), False, float(bits), float(cost))


def _slopes(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the derivatives by finite differences, with one call."""

    def slopes(point: Array) -> Array:
        steps = point + np.vstack((np.zeros(len(point)), _STEP * np.eye(len(point))))
        values: Any = function(steps)
        return np.moveaxis((values[1:] - values[:1]) / _STEP, 0, -1)

    return slopes
