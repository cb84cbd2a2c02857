"""The filters that `tamis.testing` checks in `test_contract.py`, each in each of its forms.

A new filter is tested by its options in the table of kinds, or by being listed in `SPECIMENS`.
"""

import functools
import inspect
import itertools
import os
import sys

import numpy as np

import tamis.filters.adaptive_stacked
import tamis.filters.stack_builder
from tamis.filters import CLASSES
from tamis.learned import Model, flat
from tamis.planning.kinds import KINDS
from tamis.planning.plan import Layer, Plan
from tamis.testing import FilterCase

STORES = ("keys", "negatives")


def planned(kinds, fine, *, psi=0.5, budget=None):
    """A plan for any number of keys and negatives: kinds of layers, each as fine as the others."""
    layers = []
    for index, kind in enumerate(kinds):
        stores = "both" if kind == "function" else STORES[index % 2]
        rate = 8 * 2.0**-fine if kind == "cuckoo" else 2.0**-fine
        layers.append(Layer(kind, stores, rate, 0, 0, fine, KINDS[kind].layout))
    nothing = dict.fromkeys(("n_keys", "expected_fpr", "fpr_bound", "bits_per_key"), 0)
    last = "exact" if kinds[-1:] == ("function",) else "alternating"
    return Plan(
        layers=tuple(layers), psi=psi, budget=budget, negatives=10**9, last=last,
        checks=None, expected_checks=0.0, **nothing,
    )  # fmt: skip


FIRST_NEGATIVE = 10**9
"""The first of the known negatives of stacks, above all keys."""


def stack(kinds, fine, keys, negatives, **arguments):
    plan = {name: arguments.pop(name) for name in ("psi", "budget") if name in arguments}
    return tamis.Stacked.from_plan(
        planned(kinds, fine, **plan), keys, negatives=negatives, **arguments
    )


def alternating(kind, depth=3):
    return (kind,) * depth


def made_once(plan):
    """Plans depend on numbers alone, so those of equal numbers are made once."""
    made = functools.lru_cache(maxsize=None)(plan)

    def call(*arguments, **named):
        try:
            hash((arguments, *named.values()))
        except TypeError:  # wrong arguments, such as a list
            return plan(*arguments, **named)
        return made(*arguments, **named)

    return call


tamis.filters.stack_builder.planned = made_once(tamis.plan)
tamis.filters.adaptive_stacked.plan_adaptive = made_once(
    tamis.filters.adaptive_stacked.plan_adaptive
)

# What stacks know: keys that no check uses.
KNOWN = {
    "workload": tamis.Workload.zipf(1.0, universe=5000, sample=1000),
    "negatives": np.arange(10**12, 10**12 + 1000),
}

# A classifier of text that tells numbers by their digits, with the absent ones that are asked for.
DIGITS = Model._of(
    flat.linear(flat.Grams(1, 1, 8), np.random.default_rng(7).normal(size=8), 0.0, 1)
)
SCORED = {"model": DIGITS, "nonmembers": np.arange(20_000, 220_000)}


def stable_learned(capacity, *, fpr, **rest):
    """A stable learned filter of one group, with as many bits as a stable filter asks for."""
    bits = tamis.StableBloom(capacity, fpr=fpr, fnr=1e-4).size_in_bits
    plan = tamis.plan_stable([1.0], [1.0], bits=bits, fpr=fpr, gap=capacity)
    return tamis.StableLearned(DIGITS, plan, **rest)


# What an adaptive stack knows before it is asked.
SHAPE = tamis.Workload.zipf(1.0, universe=5000, sample=1000)


def stacked(**shape):
    known = {**shape, **KNOWN}
    return FilterCase(
        tamis.Stacked, known, empty_arguments={"updates": True}, layered=True, searched=True
    )


def adaptive_stacked(**shape):
    known = {**shape, "workload": SHAPE, "seed": 0}
    return FilterCase(tamis.AdaptiveStacked, known, layered=True, learns=True, searched=True)


# What is built from keys and a rate alone, in each of the shapes that the table of kinds lists.
PLAIN = [
    FilterCase(CLASSES[kind.name], dict(option.arguments))
    for kind in KINDS.values()
    if kind.sizes and not kind.adapts
    for option in kind.options
]

SPECIMENS = [
    *PLAIN,
    FilterCase(tamis.Sharded, {"filter": tamis.Bloom, "shards": 5}),
    FilterCase(tamis.Sharded, {"filter": tamis.Ribbon, "shards": 3}),
    FilterCase(tamis.Telescoping, {"selectors": "growing", "seed": 0}, warns=False),
    FilterCase(tamis.Telescoping, {"selectors": "block", "seed": 0}, warns=False),
    FilterCase(tamis.Extending, {"seed": 0}, warns=False),
    stacked(layer="bloom", rates="equal", last="alternating"),
    stacked(layer="cuckoo", last="alternating"),
    stacked(layer="quotient", last="alternating"),
    stacked(layer="fuse", last="alternating"),
    stacked(layer="ribbon", last="alternating"),
    stacked(layer="ribbon", last="exact"),
    FilterCase(
        tamis.Sharded,
        {"filter": tamis.Stacked, "shards": 2, "layer": "ribbon", "last": "exact", **KNOWN},
        searched=True,
    ),
    FilterCase(tamis.StableBloom, {"fnr": 1e-4}, warns=False),
    FilterCase(tamis.Windowed, warns=False),
    FilterCase(tamis.LearnedBloom, SCORED, holds_classifier=True, searched=True),
    FilterCase(tamis.StableLearned, maker=stable_learned, warns=False, searched=True),
    adaptive_stacked(layer="quotient"),
    adaptive_stacked(layer="bloom", sizing="lifetime", lifetime=10**5),
    FilterCase(tamis.AdaptiveCuckoo, {"kind": "swapping", "seed": 0}, warns=False),
    FilterCase(
        tamis.AdaptiveCuckoo, {"kind": "cyclic", "selector_bits": 2, "seed": 0}, warns=False
    ),
    FilterCase(tamis.AdaptiveCuckoo, {"kind": "cuckooing", "seed": 0}, warns=False),
]


class Injected(Exception):
    """A failure made by `fails_at_every_step`."""


def fails_at_every_step(make, change, describe, module):
    """Check that a call made to fail at each step leaves its object as it was.

    ``make`` returns a new object, and ``change`` calls a method that changes it. A step is a
    call of a function of ``module``, or by one; releasing a lock does not fail.
    """
    own = os.path.splitext(module.__file__)[0].removesuffix("__init__")
    for step in itertools.count():
        target, steps = make(), itertools.count()
        before = describe(target)

        def fail(frame, event, argument, steps=steps, step=step):
            resumed = frame.f_code.co_flags & inspect.CO_GENERATOR
            called = event in ("call", "c_call") and any(
                each and each.f_code.co_filename.startswith(own)
                for each in (frame, None if resumed else frame.f_back)
            )
            if called and getattr(argument, "__name__", "") == "__exit__":
                return
            if called and next(steps) == step:
                raise Injected

        sys.setprofile(fail)
        try:
            change(target)
        except Injected:
            sys.setprofile(None)
            assert describe(target) == before, f"changed by a failure at step {step}"
        else:
            sys.setprofile(None)
            assert step > 5
            assert describe(target) != before
            return
