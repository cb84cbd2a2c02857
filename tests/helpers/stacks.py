"""Shared by the tests of planning."""

import numpy as np

MILLION = 1_000_000


def simulated(rates, keys, negatives, others, rng):
    """A stack of coins: who passes which layer, counted.

    Returns the shares of stored and other negatives that are accepted, the items of each layer,
    and the layers met by keys, stored and other negatives.
    """
    shape = {"keys": keys, "negatives": negatives, "others": others}
    alive = {name: np.ones(count, bool) for name, count in shape.items()}
    met = {name: np.zeros(count) for name, count in shape.items()}
    accepted = {name: np.zeros(count, bool) for name, count in shape.items()}
    items = []
    for i, rate in enumerate(rates):
        stored = "keys" if i % 2 == 0 else "negatives"
        items.append(int(alive[stored].sum()))
        for name in shape:
            met[name] += alive[name]
            passed = alive[name] & ((name == stored) | (rng.random(shape[name]) < rate))
            if i % 2:
                accepted[name] |= alive[name] & ~passed
            alive[name] = passed
    for name in shape:
        accepted[name] |= alive[name]
    assert accepted["keys"].all()
    checks = [met[name].mean() for name in shape]
    return accepted["negatives"].mean(), accepted["others"].mean(), items, checks
