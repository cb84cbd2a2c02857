"""Stacks whose fingerprint lengths need not be integers, such as stacks of ribbon layers.

`integer_lengths` finds integer lengths. Here the first layer is extended to the rest of the budget,
or cut to the requested rate. Then the other layers and the number of negatives are varied by
smaller and smaller steps as long as that is an improvement.

Every query passes the first layer, and every layer behind it is smaller, so the first layer trades
the most bits for the same change of the rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tamis.planning.kinds import KINDS, FractionalLengths
from tamis.planning.stacked.frequencies import Frequencies
from tamis.planning.stacked.goal import Goal, Stack
from tamis.planning.stacked.realize import layers_of, predicted

_STEPS = (1.0, 0.5, 0.25)
_TRIALS = 100  # stacks to try, at about a third of a millisecond each
_HALVINGS = 12
_GAIN = 1e-4  # the smallest relative improvement that counts


def improve(stack: Stack, goal: Goal, curve: Frequencies) -> Stack:
    """Vary the lengths of a stack and its number of negatives; the result is at least as good."""
    best = min(filter(None, (with_best_first_layer(stack, goal), stack)), key=goal.score)
    # One layer needs no negatives; and if the first layer cannot be finer, the budget is larger
    # than a stack can use.
    if len(stack.lengths) == 1 or best.lengths[0] == KINDS[stack.kind].finest:
        return best
    left = _TRIALS
    for step in _STEPS:
        found = True
        while found and left > 0:
            found = False
            for changed in _changes(best, step, curve):
                left -= 1
                other = with_best_first_layer(changed, goal)
                if other and goal.score(other) < goal.score(best) * (1 - _GAIN):
                    best, found = other, True
    return best


def with_best_first_layer(stack: Stack, goal: Goal) -> Stack | None:
    """Give the first layer the longest fingerprints that fit, or the shortest for the rate.

    Return None if no such stack meets the constraints.
    """
    if goal.minimizes_bits:
        layers = layers_of(stack, goal)
        expected, bound, _ = predicted(stack, layers)
        factor = min(goal.fpr / expected, goal.max_fpr_bound / bound) if expected else 1.0
        rate = min(layers[0].rate * factor * (1 - 1e-12), 1.0)
        if rate == 0:  # a layer without keys accepts none
            return None
        length = _fractional(stack).length(rate)
        if not KINDS[stack.kind].coarsest <= length <= KINDS[stack.kind].finest:
            return None
        # For a few keys, a whole bit may take less memory than a fraction of it.
        both = [_measured(_with_first(stack, each), goal) for each in (length, math.ceil(length))]
        return min((each for each in both if _meets(each, goal)), key=goal.score, default=None)
    integer = math.floor(stack.lengths[0])
    for low in range(min(integer + 1, KINDS[stack.kind].finest), max(integer - 2, -1), -1):
        measured = _measured(_with_first(stack, low), goal)
        if measured.bits <= goal.budget:
            break
    else:
        return None
    high: float = low + 1
    if high <= KINDS[stack.kind].finest:
        best: float = low
        for _ in range(_HALVINGS):
            middle = (best + high) / 2
            tried = _measured(_with_first(stack, middle), goal)
            if tried.bits <= goal.budget:
                best, measured = middle, tried
            else:
                high = middle
    kept = measured.lengths[0] >= KINDS[stack.kind].coarsest and _meets(measured, goal)
    return measured if kept else None


def _fractional(stack: Stack) -> FractionalLengths:
    fractional = KINDS[stack.kind].fractional
    assert fractional is not None
    return fractional


def _with_first(stack: Stack, length: float) -> Stack:
    return stack._replace(lengths=(length, *stack.lengths[1:]))


def _measured(stack: Stack, goal: Goal) -> Stack:
    """Return the stack with the rates, bits and cost that follow from its lengths."""
    layers = layers_of(stack, goal)
    expected, _, checks = predicted(stack, layers)
    return stack._replace(
        rates=tuple(layer.rate for layer in layers[: len(stack.lengths)]),
        bits=float(sum(layer.bits for layer in layers)),
        cost=float(goal.cost(expected, stack.psi, checks, stack.kind)),
    )


def _meets(stack: Stack, goal: Goal) -> bool:
    expected, bound, checks = predicted(stack, layers_of(stack, goal))
    return bool(goal.allowed(expected, bound, stack.psi, checks, stack.bits))


def _changes(stack: Stack, step: float, curve: Frequencies) -> Iterator[Stack]:
    """Yield variants of the stack: another length of a later layer, or other negatives."""
    kind, rate = KINDS[stack.kind], _fractional(stack).rate
    for i in range(1, len(stack.lengths)):
        for length in (stack.lengths[i] + step, stack.lengths[i] - step):
            if kind.coarsest <= length <= kind.finest:
                lengths = (*stack.lengths[:i], length, *stack.lengths[i + 1 :])
                yield stack._replace(lengths=lengths, rates=tuple(map(rate, lengths)))
    for factor in (2**step, 2**-step):
        negatives = min(max(1, round(stack.negatives * factor)), curve.size)
        yield stack._replace(negatives=negatives, psi=min(1.0, float(curve.psi(negatives))))
