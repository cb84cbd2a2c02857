"""The filters of the arena: every family of tamis, and packages from PyPI, by one interface.

A `Family` builds a `Built` for a ground and a budget in bits, with everything counted: models,
maps of planned negatives, selectors. What an adaptive filter needs beside itself, the hashes of its
keys, is ``remote``: the protocol leaves it out, so it is counted apart.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from experiments.arena import models
from experiments.arena.grounds import Ground, Stream

import tamis
from tamis.planning import quotient, telescoping
from tamis.planning.kinds import KINDS, Option, fingerprint_layer
from tamis.planning.learned_bloom import FORMS
from tamis.stores import Hashes

REMOTE = 128
"""Bits of a hash beside an adaptive filter: in an index of the store, or in memory."""


class TooSmall(Exception):
    """The family has no filter of this size."""


@dataclass(frozen=True)
class Built:
    """A filter, how to ask it, and its size in bits."""

    filter: Any
    ask: Callable[[np.ndarray], np.ndarray]
    """Takes row numbers, returns which may be members."""
    bits: Callable[[], int]
    remote: Any = None
    remote_bits: int = 0
    plan: Any = None
    """The plan of a stack."""


@dataclass(frozen=True, eq=False)
class Family:
    """A way to build a filter. ``planned`` filters depend on the first quarter of the queries."""

    name: str
    group: str
    build: Callable[[Ground, Stream, float, int], Built]
    option: Option | None = None
    """The row of tamis's table of times, for the cost of a query; None for other packages."""
    planned: bool = False
    adapts: bool = False
    dynamic: bool = False
    """Takes insertions and deletions in place."""
    resizes: bool = False
    """Has shorter remainders if its selectors outgrow the budget."""


def own(f: Any, ground: Ground, **beside: Any) -> Built:
    """Return a filter of tamis, asked by key."""
    return Built(
        f, lambda places: f.contains(ground.take(places)), lambda: f.size_in_bits, **beside
    )


def plain(
    cls: Any, ground: Ground, stream: Stream, budget: float, seed: int, **arguments: Any
) -> Built:
    try:
        f = cls.build(ground.keys, bits_per_key=budget, seed=seed, **arguments)
    except ValueError as error:
        raise TooSmall(str(error)) from None
    return own(f, ground)


def stacked(ground: Ground, stream: Stream, budget: float, seed: int, **options: Any) -> Built:
    plans = stream.known  # one plan for all seeds
    name = (budget, *options.items())
    if name not in plans:
        plans[name] = tamis.plan(ground.members, stream.history, bits_per_key=budget, **options)
    return own(plans[name].build(ground.keys, seed=seed), ground, plan=plans[name])


def selecting(cls: Any, ground: Ground, stream: Stream, budget: float, seed: int) -> Built:
    """Build a quotient filter that adapts, with room in the budget for the fixes to come.

    ``stream.known`` may hold a length of remainders that a run has found to fit.
    """
    n = ground.members
    longest = stream.known.get((cls.__name__, budget)) or max_remainders(n, stream.distinct, budget)
    if longest < 1:
        raise TooSmall("its selectors do not fit")
    f = cls.build(ground.keys, fpr=2.0**-longest, seed=seed)
    return own(f, ground, remote=Hashes(ground.keys, seed=seed), remote_bits=REMOTE * n)


def max_remainders(n: int, distinct: int, budget: float) -> int:
    """Return the longest remainders whose selectors are predicted to fit; 0 if none do."""
    beside = telescoping.selector_bits(quotient.quotients(n), "growing")
    for length in range(24, 0, -1):
        slots, rate = fingerprint_layer("quotient", n, length)
        code = telescoping.selector_entropy(distinct / n, rate, load=1.0)
        if slots + beside + n * code <= budget * n:
            return length
    return 0


def adaptive_cuckoo(ground: Ground, stream: Stream, budget: float, seed: int) -> Built:
    try:
        f = tamis.AdaptiveCuckoo.build(ground.keys, bits_per_key=budget, seed=seed)
    except ValueError as error:
        raise TooSmall(str(error)) from None
    return own(f, ground, remote=(), remote_bits=round(REMOTE * len(f) / f.load))


def adaptive_stacked(
    ground: Ground, stream: Stream, budget: float, seed: int, layer: str = "auto"
) -> Built:
    if not len(stream.history):
        raise TooSmall("no queries to learn the skew from")
    try:
        f = tamis.AdaptiveStacked.build(
            ground.keys,
            stream.history,
            bits_per_key=budget,
            sizing="lifetime",
            lifetime=max(len(stream.absent), 1),
            layer=layer,
            seed=seed,
        )
    except ValueError as error:
        raise TooSmall(str(error)) from None
    remote = Hashes(ground.keys, seed=seed)
    return own(f, ground, remote=remote, remote_bits=REMOTE * ground.members, plan=f.plan.stack)


def learned(ground: Ground, stream: Stream, budget: float, seed: int, form: str) -> Built:
    """Build with each model, and take the one with the lowest predicted rate."""
    return learned_with(models.trained(ground, 0.3, seed=seed), ground, budget, seed, form)


def learned_with(
    training: models.Training, ground: Ground, budget: float, seed: int, form: str
) -> Built:
    found = []
    for model in training.models:
        try:
            found.append(
                tamis.LearnedBloom.build(
                    ground.keys,
                    features=None
                    if ground.features is None
                    else ground.read(np.arange(ground.members)),
                    nonmembers=training.held,
                    model=model,
                    bits_per_key=budget,
                    form=form,
                    seed=seed,
                )
            )
        except (ValueError, tamis.BuildError):
            continue  # the model is larger than the budget
    if not found:
        raise TooSmall("the smallest model exceeds the budget")
    f = min(found, key=lambda each: each.expected_fpr)

    def ask(places: np.ndarray) -> np.ndarray:
        if ground.features is None:
            return f.contains(ground.take(places))
        return f.contains(ground.take(places), features=ground.read(places))

    return Built(f, ask, lambda: f.size_in_bits)


# ---- other packages --------------------------------------------------------------------------


def outside(
    make: Callable[..., Any], ground: Ground, stream: Stream, budget: float, seed: int
) -> Built:
    """Build a filter of another package, of the highest rate it offers within the budget.

    All of them get integers: the hash of a text is random by process in two of them.
    """
    numbers = ground.numbers
    f, contains, bits = make(numbers[: ground.members], budget)

    def ask(places: np.ndarray) -> np.ndarray:
        return np.fromiter((contains(numbers[each]) for each in places.tolist()), bool, len(places))

    return Built(f, ask, lambda: bits)


def fitting(size: Callable[[float], int], keys: int, budget: float) -> float:
    """Return the lowest rate, in steps of 1 %, at which a filter of this many keys fits."""
    rate = 0.5 ** (budget * math.log(2))
    while size(rate) > budget * keys:
        rate *= 1.01
    return rate


def rbloom(keys: Sequence[int], budget: float) -> tuple[Any, Any, int]:
    from rbloom import Bloom

    f = Bloom(
        len(keys), fitting(lambda rate: Bloom(len(keys), rate).size_in_bits, len(keys), budget)
    )
    f.update(keys)
    return f, f.__contains__, f.size_in_bits


def abloom(keys: Sequence[int], budget: float) -> tuple[Any, Any, int]:
    from abloom import BloomFilter

    def size(rate: float) -> int:
        return BloomFilter(len(keys), rate).bit_count

    f = BloomFilter(len(keys), fitting(size, len(keys), budget))
    f.update(keys)
    return f, f.__contains__, f.bit_count


def fastbloom(keys: Sequence[int], budget: float) -> tuple[Any, Any, int]:
    from fastbloom_rs import FilterBuilder

    def make(rate: float) -> Any:
        return FilterBuilder(len(keys), rate).build_bloom_filter()

    def size(rate: float) -> int:
        return len(make(rate).get_bytes()) * 8

    f = make(fitting(size, len(keys), budget))
    f.add_int_batch(keys)
    return f, f.contains_int, len(f.get_bytes()) * 8


def pybloom(keys: Sequence[int], budget: float) -> tuple[Any, Any, int]:
    from pybloomfilter import BloomFilter

    rate = 0.5 ** (budget * math.log(2))
    hashes = max(1, math.ceil(-math.log2(rate)))  # its own number of hashes, with fixed seeds

    def make(rate: float) -> Any:
        return BloomFilter(len(keys), rate, hash_seeds=list(range(1, hashes + 1)))

    f = make(fitting(lambda rate: make(rate).num_bits, len(keys), budget))
    f.update(keys)
    return f, f.__contains__, f.num_bits


def pyfuse(keys: Sequence[int], budget: float) -> tuple[Any, Any, int]:
    from pyfusefilter import Fuse8

    f = Fuse8(keys)
    bits = f.size_in_bytes() * 8
    if bits > budget * len(keys):
        raise TooSmall("it has fingerprints of 8 or 16 bits only")
    return f, f.__contains__, bits


PACKAGES = {
    "rbloom": ("rbloom", rbloom),
    "abloom": ("abloom", abloom),
    "fastbloom-rs": ("fastbloom_rs", fastbloom),
    "pybloomfiltermmap3": ("pybloomfilter", pybloom),
    "pyfusefilter": ("pyfusefilter", pyfuse),
}
"""By name: the module, and how to make its filter."""


def installed() -> list[Family]:
    return [
        Family(name, "outside", partial(outside, make))
        for name, (module, make) in PACKAGES.items()
        if importlib.util.find_spec(module)
    ]


def kinds(name: str, at: int = 0) -> Option:
    return KINDS[name].options[at]


STACKS = {"layer": "auto", "rates": "equal"}
BLOOM = "Bloom, standard"
"""All times are also given as multiples of this family's."""

FAMILIES = [
    Family(BLOOM, "plain", partial(plain, tamis.Bloom, layout="standard"), kinds("bloom", 1)),
    Family(
        "Bloom, blocked", "plain", partial(plain, tamis.Bloom, layout="blocked"), kinds("bloom")
    ),
    Family("Cuckoo", "plain", partial(plain, tamis.Cuckoo), kinds("cuckoo"), dynamic=True),
    Family("Quotient", "plain", partial(plain, tamis.Quotient), kinds("quotient"), dynamic=True),
    Family("Fuse", "plain", partial(plain, tamis.Fuse, arity=4), kinds("fuse", 1)),
    Family("Ribbon", "plain", partial(plain, tamis.Ribbon), kinds("ribbon")),
    Family(
        "Stacked, Bloom layers",
        "stacked",
        partial(stacked, layer="bloom", last="alternating", rates="equal"),
        planned=True,
    ),
    Family(
        "Stacked, alternating",
        "stacked",
        partial(stacked, last="alternating", **STACKS),
        planned=True,
    ),
    Family("Stacked, exact", "stacked", partial(stacked, last="exact", **STACKS), planned=True),
    Family("AdaptiveStacked", "adaptive", adaptive_stacked, planned=True, adapts=True),
    Family(
        "Telescoping",
        "adaptive",
        partial(selecting, tamis.Telescoping),
        kinds("telescoping"),
        planned=True,
        adapts=True,
        dynamic=True,
        resizes=True,
    ),
    Family(
        "Extending",
        "adaptive",
        partial(selecting, tamis.Extending),
        kinds("extending"),
        planned=True,
        adapts=True,
        dynamic=True,
        resizes=True,
    ),
    Family(
        "AdaptiveCuckoo",
        "adaptive",
        adaptive_cuckoo,
        kinds("adaptive_cuckoo"),
        planned=True,
        adapts=True,
        dynamic=True,
    ),
    *(
        Family(f"Learned, {form}", "learned", partial(learned, form=form), kinds("ribbon"))
        for form in FORMS
    ),
]
