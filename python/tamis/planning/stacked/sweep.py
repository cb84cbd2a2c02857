"""How many negatives to store: a search over |N_f| that skips numbers that cannot be best.

The negatives stored are always the most frequent ones, so a stack is a choice of n = |N_f| and of
layers. Let E(n) be the minimum EFPR within the budget with n negatives, and n₁ < n. The best layers
for n also fit the budget with n₁ negatives, and err there at most (1 − ψ(n₁))/(1 − ψ(n)) times as
often: EFPR = ψ·F + (1 − ψ)·I with F ≤ I. Hence

    E(n) ≥ E(n₁) · (1 − ψ(n)) / (1 − ψ(n₁)),

a bound for all n of an interval from its lower end alone. Theorem 1 of Deeds, Hentschel and Idreos
2021 skips by such a bound from left to right; here the interval with the lowest bound is split
next, until none can improve the best stack found by more than the tolerance.

When the bits for a rate are minimized, the same argument bounds them: with n₁ negatives and a rate
that is (1 − ψ(n₁))/(1 − ψ(n)) times higher, no more bits are needed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from tamis.planning.stacked.frequencies import Frequencies
from tamis.planning.stacked.goal import Goal, Stack

Search: TypeAlias = Callable[[Goal, int, float, float], Stack | None]
"""Find the best stack with this many negatives and their ψ; None if no stack meets the goal with a
score below the last argument."""

_SPLITS = 600
# An interval is split where 1 − ψ is the mean, but not below a sixteenth of where it starts: up to
# the last known negative 1 − ψ may fall to nothing.
_STEEPEST = 1 / 256


# A number of negatives that is this many times worse than the best is not refined further.
_WORSE = 2.0


def sweep(
    search: Search, goal: Goal, curve: Frequencies, tolerance: float, best: Stack | None = None
) -> Stack | None:
    """Find the best stack over all numbers of negatives, up to a relative ``tolerance``.

    ``best`` is the best one known before, and is returned if none is better.
    """
    if curve.size == 0:
        return best
    psi: dict[int, float] = {}
    lower_bound: dict[int, float] = {}  # of the score, for each number that was tried

    def attempt(n: int) -> None:
        nonlocal best
        if n in psi:
            return
        psi[n] = min(1.0, float(curve.psi(n)))
        cutoff = goal.score(best) if best else math.inf
        cutoff *= 1.0 if goal.minimizes_bits else _WORSE
        stack = search(goal, n, psi[n], cutoff)
        lower_bound[n] = goal.score(stack) if stack else cutoff
        best = better(best, stack, goal)

    def bound(low: int, high: int) -> float:
        """Return a lower bound of the score for (low, high]; infinite if it is not better."""
        left = (1 - psi[high]) / (1 - psi[low]) if psi[low] < 1 else 1.0
        if not goal.minimizes_bits:
            return max(lower_bound[low] * left, goal.min_cost)
        if not left or goal.fpr / left >= 1:
            return 0.0
        relaxed = replace(goal, fpr=goal.fpr / left)
        cutoff = goal.score(best) * (1 - tolerance) if best else math.inf
        stack = search(relaxed, low, psi[low], cutoff)
        return stack.bits if stack else math.inf

    attempt(1)
    attempt(curve.size)
    intervals = [(bound(1, curve.size), 1, curve.size)] if curve.size > 2 else []
    for _ in range(_SPLITS):
        if not intervals or (best and intervals[0][0] >= goal.score(best) * (1 - tolerance)):
            break
        _, low, high = heapq.heappop(intervals)
        left = (1 - psi[high]) / (1 - psi[low]) if psi[low] < 1 else 1.0
        target = 1 - (1 - psi[low]) * math.sqrt(max(left, _STEEPEST))
        middle = min(max(curve.rank(target), low + 1), high - 1)
        attempt(middle)
        for ends in ((low, middle), (middle, high)):
            if ends[1] - ends[0] > 1 and (floor := bound(*ends)) < math.inf:
                heapq.heappush(intervals, (floor, *ends))
    return best


def better(a: Stack | None, b: Stack | None, goal: Goal) -> Stack | None:
    """Return the better stack; of equal scores, the one with the lower rate bound."""
    if a is None or b is None:
        return a or b
    if goal.score(a) == goal.score(b):
        return min(a, b, key=lambda stack: (stack.fpr_bound, stack.bits))
    return min(a, b, key=goal.score)
