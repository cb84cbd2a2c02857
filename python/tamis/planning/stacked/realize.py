"""Turn the stack that a search found into a plan.

Searches treat the numbers of items and bits as real numbers. Here, each layer gets whole numbers
and the rate of a filter of this size, and the layers below are adjusted.
"""

from __future__ import annotations

import math
from functools import lru_cache

from tamis.planning.kinds import FUNCTION, KINDS, fingerprint_layer
from tamis.planning.plan import Layer, Plan
from tamis.planning.ribbon import function_bits
from tamis.planning.stacked import predictions
from tamis.planning.stacked.goal import FLOOR, Goal, Stack
from tamis.planning.stacked.predictions import Checks

# The usual range of the scale, the number of halvings of the range, and the largest scale.
_BRACKET = (0.98, 1.02)
_HALVINGS = 16
_WIDEST = 2.0**10


def realize(stack: Stack, goal: Goal) -> Plan:
    """Return the plan of a stack, within the goal's budget or rate."""
    if stack.lengths:
        return _plan(stack, goal, layers_of(stack, goal))

    # The bits of all layers are scaled to just meet the budget, or the rate and its bound.
    def too_small(scale: float) -> bool:
        layers = layers_of(stack, goal, scale)
        if goal.minimizes_bits:
            expected, bound, _ = predicted(stack, layers)
            return expected > goal.fpr or bound > goal.max_fpr_bound
        # A rate below `FLOOR` under any workload needs no more bits.
        fits = sum(layer.bits for layer in layers) <= goal.budget
        return fits and predicted(stack, layers)[1] > FLOOR

    low, high = _BRACKET
    if not too_small(low):
        low = 0.0
    while too_small(high) and high < _WIDEST:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return _plan(stack, goal, layers_of(stack, goal, high if goal.minimizes_bits else low))


def layers_of(stack: Stack, goal: Goal, scale: float = 1.0) -> tuple[Layer, ...]:
    """Return the layers of a stack; the bits of layers of any rate are multiplied by ``scale``."""
    layers: list[Layer] = []
    remaining = {"keys": float(goal.keys), "negatives": float(stack.negatives)}
    kind = KINDS[stack.kind]
    sizes = [] if stack.lengths else [kind.bits_per_item(rate) for rate in stack.rates]
    for i in range(len(stack.rates)):
        stores, others = ("keys", "negatives") if i % 2 == 0 else ("negatives", "keys")
        items = math.ceil(remaining[stores])
        if stack.lengths:
            bits, rate = fingerprint_layer(stack.kind, items, stack.lengths[i])
            length = stack.lengths[i]
        else:
            bits = max(1, math.floor(items * sizes[i] * scale))
            rate, length = _rate(kind.name, items, bits), None
        layers.append(Layer(kind.name, stores, rate, items, bits, length, kind.layout))
        remaining[others] *= rate
    if stack.exact:
        items = math.ceil(remaining["keys"] + remaining["negatives"])
        layers.append(Layer(FUNCTION.name, "both", 0.5, items, function_bits(items), 1))
    return tuple(layers)


@lru_cache(maxsize=8)
def _rate(kind: str, items: int, bits: int) -> float:
    """Predict the rate of a layer of these items and bits."""
    if items == 0 or bits < 1:
        return 0.0 if items == 0 else 1.0
    return float(KINDS[kind].layer_size(items, bits_per_key=bits / items).rate(items))


def predicted(stack: Stack, layers: tuple[Layer, ...]) -> tuple[float, float, Checks]:
    """Predict EFPR, EFPB and checks of these layers."""
    rates = [layer.rate for layer in layers]
    if stack.exact:
        rate = rates[0]
        return predictions.exact_rate(rate, stack.psi), rate / 2, predictions.exact_checks(rate)
    expected = predictions.expected_rate(rates, stack.psi)
    return expected, predictions.infrequent_rate(rates), predictions.checks(rates)


def _plan(stack: Stack, goal: Goal, layers: tuple[Layer, ...]) -> Plan:
    expected, bound, checks = predicted(stack, layers)
    return Plan(
        n_keys=goal.keys,
        layers=layers,
        negatives=stack.negatives,
        psi=stack.psi,
        last="exact" if stack.exact else "alternating",
        expected_fpr=expected,
        fpr_bound=bound,
        bits_per_key=sum(layer.bits for layer in layers) / max(goal.keys, 1),
        expected_checks=goal.mean_checks(stack.psi, checks),
        checks=checks,
        budget=None if goal.minimizes_bits else goal.budget / max(goal.keys, 1),
    )
