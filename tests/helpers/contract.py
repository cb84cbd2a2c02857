"""The contract of every filter, as checks of a specimen; `test_contract.py` runs all on all.

A new filter is tested by its options in the table of kinds, or by being listed in `SPECIMENS`.
Where a filter is an exception to a check, its specimen says so: no check names a class.
"""

import copy
import functools
import inspect
import itertools
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import numpy as np
import pytest

import tamis.filters.adaptive_stacked
import tamis.filters.stacking
from tamis.filters import CLASSES
from tamis.learned import Model, flat
from tamis.planning.kinds import KINDS
from tamis.planning.plan import Layer, Plan

SIGMAS = 5.0
"""A fair sample leaves this many standard deviations once in 1.7 million checks."""


@dataclass(frozen=True)
class Specimen:
    """A filter class with the arguments that choose one of its shapes."""

    cls: Any
    shape: dict[str, Any] = field(default_factory=dict)
    making: Callable[..., Any] | None = None
    """Makes the empty filter of a capacity and a rate, where the class wants more than that."""
    building_empty: dict[str, Any] | None = None
    """Arguments of ``build`` for an empty filter, where the class has no constructor for one."""
    layered: bool = False
    """Its layers decide what it can do, so its class has every method; each is coarser than it."""
    learns: bool = False
    """Reaches its rate only once it was told of false positives."""
    holds_classifier: bool = False
    """A classifier is part of it, which alone may exceed a small budget."""
    warns: bool = True
    """Warns above its capacity. Others grow, refuse keys, or are streams with a limited rate."""
    planned: bool = False
    """A search finds its sizes, so a better search changes its bytes."""

    def __str__(self):
        named = [getattr(value, "__name__", value) for value in self.shape.values()]
        told = (str(value) for value in named if type(value) in (str, int))
        return "-".join([self.cls.__name__, *told])

    @property
    def build(self) -> Callable[..., Any]:
        if self.making is not None:
            return self._filled
        return partial(self.cls.build, **self.shape)

    def _filled(self, keys, **goal):
        f = self.make(max(len(keys), 1), **goal)
        f.update(keys)
        return f

    @property
    def make(self) -> Callable[..., Any]:
        if self.making is not None:
            return self.making
        if self.building_empty is not None:
            return lambda capacity, **goal: self.build(
                [], capacity=capacity, **self.building_empty, **goal
            )
        return partial(self.cls, **self.shape)

    @property
    def inserts(self) -> bool:
        return self.build([1], fpr=0.01).inserts

    @property
    def deletes(self) -> bool:
        return self.build([1], fpr=0.01).deletes

    @property
    def bounded(self) -> bool:
        return self.build([1], fpr=0.01).bounded


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


tamis.filters.stacking.planned = made_once(tamis.plan)
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
    return Specimen(
        tamis.Stacked, known, building_empty={"updates": True}, layered=True, planned=True
    )


def adaptive_stacked(**shape):
    known = {**shape, "workload": SHAPE, "seed": 0}
    return Specimen(tamis.AdaptiveStacked, known, layered=True, learns=True, planned=True)


# What is built from keys and a rate alone, in each of the shapes that the table of kinds lists.
PLAIN = [
    Specimen(CLASSES[kind.name], dict(option.arguments))
    for kind in KINDS.values()
    if kind.sizes and not kind.adapts
    for option in kind.options
]

SPECIMENS = [
    *PLAIN,
    Specimen(tamis.Sharded, {"filter": tamis.Bloom, "shards": 5}),
    Specimen(tamis.Sharded, {"filter": tamis.Ribbon, "shards": 3}),
    Specimen(tamis.Telescoping, {"selectors": "growing", "seed": 0}, warns=False),
    Specimen(tamis.Telescoping, {"selectors": "block", "seed": 0}, warns=False),
    Specimen(tamis.Extending, {"seed": 0}, warns=False),
    stacked(layer="bloom", rates="equal", last="alternating"),
    stacked(layer="cuckoo", last="alternating"),
    stacked(layer="quotient", last="alternating"),
    stacked(layer="fuse", last="alternating"),
    stacked(layer="ribbon", last="alternating"),
    stacked(layer="ribbon", last="exact"),
    Specimen(
        tamis.Sharded,
        {"filter": tamis.Stacked, "shards": 2, "layer": "ribbon", "last": "exact", **KNOWN},
        planned=True,
    ),
    Specimen(tamis.StableBloom, {"fnr": 1e-4}, warns=False),
    Specimen(tamis.Windowed, warns=False),
    Specimen(tamis.LearnedBloom, SCORED, holds_classifier=True, planned=True),
    Specimen(tamis.StableLearned, making=stable_learned, warns=False, planned=True),
    adaptive_stacked(layer="quotient"),
    adaptive_stacked(layer="bloom", sizing="lifetime", lifetime=10**5),
    Specimen(tamis.AdaptiveCuckoo, {"kind": "swapping", "seed": 0}, warns=False),
    Specimen(tamis.AdaptiveCuckoo, {"kind": "cyclic", "selector_bits": 2, "seed": 0}, warns=False),
    Specimen(tamis.AdaptiveCuckoo, {"kind": "cuckooing", "seed": 0}, warns=False),
]

CHECKS: list[Callable[..., None]] = []


class Stranger(tamis.Sharded):
    """A filter of another class than any specimen."""


def check(function):
    CHECKS.append(function)
    return function


def check_of_sets(function):
    """A check of a filter that holds a set; a stream has an order, and old keys are forgotten."""

    @wraps(function)
    def checked(specimen, **arguments):
        if specimen.cls.one_sided:
            function(specimen, **arguments)

    return check(checked)


def within_noise(measured: float, expected: float, trials: int) -> bool:
    """Whether a share of trials is one that a coin with this bias gives."""
    sigma = (expected * (1 - expected) / trials) ** 0.5
    return abs(measured - expected) <= SIGMAS * sigma + 1 / trials


@check_of_sets
def denies_no_key(specimen):
    for n in (0, 1, 2, 3, 17, 100, 5000):
        for keys in (
            list(range(n)),
            [f"key {i}" for i in range(n)],
            np.arange(n, dtype=np.uint32),
        ):
            f = specimen.build(keys, fpr=0.01, seed=n)
            assert f.contains(keys).all()
            assert all(key in f for key in list(keys)[:200])
            assert len(f) == n


@check
def empty_set_says_no(specimen):
    f = specimen.build([], fpr=0.01)
    assert len(f) == 0
    assert f.expected_fpr == 0
    assert "a" not in f
    assert not f.contains(range(100)).any()
    assert f.contains([]).shape == (0,)
    assert f.bits_per_key == f.size_in_bits


@check_of_sets
def errs_as_expected(specimen):
    """The rate measured, expected of the filter as it is, and asked for: three that agree."""
    n, trials = 20_000, 200_000
    for seed, rate in enumerate((0.3, 0.05, 2**-8, 0.001)):
        f = specimen.build(np.arange(n), fpr=rate, seed=seed)
        measured = f.contains(np.arange(n, n + trials)).mean()
        assert within_noise(measured, f.fpr_bound, trials), (measured, f.fpr_bound)
        # What is stored varies about its expectation by far less than a tenth at this size; the
        # rate may be below what was asked by what whole bits make of it.
        if not specimen.learns:
            assert 0.2 * rate <= f.expected_fpr <= 1.1 * rate


@check_of_sets
def keeps_to_the_budget(specimen):
    n = 20_000
    rates = []
    for budget in (6, 8.5, 12, 20):
        f = specimen.build(np.arange(n), bits_per_key=budget)
        assert f.bits_per_key <= budget
        assert f.bits_per_key == f.size_in_bits / n
        rates.append(f.expected_fpr)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.01


@check_of_sets
def small_sets_take_a_budget_too(specimen):
    """A structure has a least size; below it a budget cannot be kept, but nothing fails."""
    if specimen.holds_classifier:  # see test_learned.py
        return
    for n in (0, 1, 2, 50):
        f = specimen.build(range(n), bits_per_key=12)
        assert f.contains(range(n)).all()
        assert f.size_in_bits <= 8192


@check_of_sets
def build_removes_duplicates(specimen):
    keys = [f"key {i % 700}" for i in range(3000)]
    once = specimen.build(sorted(set(keys)), fpr=0.01)
    f = specimen.build(keys, fpr=0.01)
    assert len(f) == 700
    assert f.to_bytes() == once.to_bytes()


@check_of_sets
def same_input_same_bytes(specimen):
    keys = np.random.default_rng(1).integers(0, 2**63, 2000)
    one = specimen.build(keys, fpr=0.01).to_bytes()
    assert one == specimen.build(keys.tolist()[::-1], fpr=0.01).to_bytes()
    assert one != specimen.build(keys, fpr=0.01, seed=1).to_bytes()


@check
def comes_back_from_bytes(specimen, tmp_path):
    keys, asked = range(300), range(3000)
    f = specimen.build(keys, fpr=0.05, seed=3)
    path = tmp_path / "filter.tamis"
    f.save(os.fsencode(path))
    assert [p.name for p in tmp_path.iterdir()] == ["filter.tamis"]
    assert path.read_bytes() == f.to_bytes()
    for twin in (
        tamis.from_bytes(f.to_bytes()),
        tamis.from_bytes(memoryview(f.to_bytes())),
        tamis.load(path),
        tamis.load(str(path), mmap=True),
        pickle.loads(pickle.dumps(f)),
        copy.copy(f),
        copy.deepcopy(f),
        f.copy(),
    ):
        assert type(twin) is type(f)
        assert twin.to_bytes() == f.to_bytes()
        assert (twin.contains(asked) == f.contains(asked)).all()
        facts = ("capacity", "size_in_bits", "bits_per_key", "expected_fpr", "seed")
        assert all(getattr(twin, fact) == getattr(f, fact) for fact in facts)
        assert len(twin) == len(f)
        assert repr(twin) == repr(f)


@check
def copies_are_apart(specimen, tmp_path):
    if not specimen.inserts:
        return
    f = specimen.make(200, fpr=0.01)
    f.update(range(100))
    before = f.to_bytes()
    f.save(tmp_path / "f")
    mapped = tamis.load(tmp_path / "f", mmap=True)
    for twin in (f.copy(), tamis.from_bytes(before), mapped):
        twin.add("another")
        assert "another" in twin
        assert f.to_bytes() == before
    assert (tmp_path / "f").read_bytes() == before


@check
def replaces_a_file_under_a_mapping(specimen, tmp_path):
    path = tmp_path / "f"
    specimen.build(range(500), fpr=0.01).save(path)
    mapped = tamis.load(path, mmap=True)
    specimen.build(range(1000, 1010), fpr=0.01).save(path)
    assert mapped.contains(range(500)).all()
    assert tamis.load(path).contains(range(1000, 1010)).all()


@check
def refuses_every_flip_and_truncation(specimen, tmp_path):
    data = specimen.build(range(20), fpr=0.05).to_bytes()
    path = tmp_path / "f"
    for at in range(len(data)):
        for bad in (data[:at], data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]):
            with pytest.raises(tamis.FormatError):
                tamis.from_bytes(bad)
    for at in range(0, len(data), 37):
        path.write_bytes(data[:at])
        with pytest.raises(tamis.FormatError):
            tamis.load(path, mmap=True)
    with pytest.raises(tamis.FormatError):
        tamis.from_bytes(data + b"\0")


@check
def keeps_a_secret_key_secret(specimen, tmp_path):
    secret = bytes(range(50, 66))
    f = specimen.build(range(1000), fpr=0.01, key=secret)
    assert f.seed is None
    assert f.contains(range(1000)).all()
    data = f.to_bytes()
    assert secret not in data
    assert tamis.from_bytes(data, key=secret).contains(range(1000)).all()
    f.save(tmp_path / "f")
    assert tamis.load(tmp_path / "f", key=secret, mmap=True).contains(range(1000)).all()
    with pytest.raises(tamis.IncompatibleError, match="secret key"):
        tamis.from_bytes(data)
    with pytest.raises(tamis.IncompatibleError, match="key is not the one"):
        tamis.from_bytes(data, key=bytes(16))
    with pytest.raises(tamis.IncompatibleError, match="seed 0"):
        tamis.from_bytes(specimen.build([1], fpr=0.01).to_bytes(), key=secret)
    with pytest.raises(TypeError, match="to_bytes"):
        pickle.dumps(f)
    with pytest.raises(ValueError, match="key must be 16 bytes, not 3"):
        specimen.build([1], fpr=0.01, key=b"abc")
    with pytest.raises(ValueError, match="pass either seed or key"):
        specimen.build([1], fpr=0.01, key=secret, seed=7)
    assert f.copy().contains(range(1000)).all()


@check
def says_what_it_can(specimen):
    f = specimen.build([1], fpr=0.01)
    cls = specimen.cls
    if not specimen.layered:
        assert hasattr(f, "add") == hasattr(f, "update") == cls.inserts
        assert hasattr(f, "remove") == cls.deletes
        for name, able in (("add", cls.inserts), ("remove", cls.deletes)):
            if not able:
                with pytest.raises(
                    AttributeError, match=f"{cls.__name__} filter; use one of .*Cuckoo"
                ):
                    getattr(f, name)
    if not cls.merges:
        with pytest.raises(tamis.IncompatibleError, match="cannot be merged"):
            f | f
    with pytest.raises(tamis.IncompatibleError):
        f | Stranger.build([1], fpr=0.01)
    assert isinstance(cls.one_sided, bool)
    assert cls.__name__ in repr(f)


@check_of_sets
def refuses_bad_arguments(specimen):
    build = specimen.build
    for wrong in ({}, {"fpr": 0.1, "bits_per_key": 9}):
        with pytest.raises(ValueError, match="pass exactly one of"):
            build([1], **wrong)
    for rate in (0, 1, -0.1, 2, float("nan")):
        with pytest.raises(ValueError, match="fpr must be"):
            build([1], fpr=rate)
    for budget in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="bits_per_key must be"):
            build([1], bits_per_key=budget)
    for seed, error in ((-1, ValueError), (2**64, ValueError), ("a", TypeError)):
        with pytest.raises(error, match="an int from 0 to"):
            build([1], fpr=0.1, seed=seed)
    if specimen.inserts:
        for capacity, error in ((-1, ValueError), (1.5, TypeError), (2**60, ValueError)):
            with pytest.raises(error, match="capacity must be"):
                specimen.make(capacity, fpr=0.1)
        with pytest.raises((MemoryError, ValueError)):
            specimen.make(2**47, fpr=1e-9)


@check
def insertion_is_all_or_nothing(specimen):
    if not specimen.inserts:
        return
    f = specimen.make(10, fpr=0.01)
    before = f.to_bytes()
    for bad in (["a", "b", None], ["a", 1], [1, 2, 2.5], ["a", "b", "\ud800"]):
        with pytest.raises(TypeError):
            f.update(bad)
    with pytest.raises(OverflowError):
        f.update([1, 2, 2**64])
    assert f.to_bytes() == before


@check
def a_long_batch_is_all_or_nothing(specimen):
    """Also where the fault comes thousands of keys after the first, which were taken in by then."""
    if not specimen.inserts:
        return
    pa = pytest.importorskip("pyarrow")
    numbers, text = list(range(5000)), [f"key {i}" for i in range(5000)]
    f = specimen.make(9000, fpr=2**-6)
    f.update(range(1000))
    before = f.to_bytes()
    for bad in (
        [*numbers, None],
        [*numbers, "text"],
        [*text, 1.5],
        [*text, "\ud800"],
        np.array([*text, None], dtype=object),
        np.array([*text, "\ud800"]),
        pa.array([*numbers, None]),
        pa.array([*text, None]),
    ):
        with pytest.raises(TypeError):
            f.update(bad)
        assert f.to_bytes() == before
    if not specimen.bounded:
        return
    held, asked = f.contains(np.arange(100_000)), np.arange(100_000)
    more = np.arange(1000, 41_000)
    for batch in (more, more.tolist(), pa.array(more), [str(i) for i in more], pa.array(text * 9)):
        with pytest.raises(tamis.CapacityError, match="no room"):
            f.update(batch)
        assert len(f) == 1000
        assert (f.contains(asked) == held).all()
    f.update(more[:7000])  # all room is free again
    for key in range(1000):
        f.remove(key)
    assert len(f) == 7000
    assert f.contains(more[:7000]).all()


@check
def one_by_one_or_all_at_once(specimen):
    if not specimen.inserts:
        return
    keys = list(range(2000))
    f, g = specimen.make(2000, fpr=0.01), specimen.make(2000, fpr=0.01)
    for key in keys:
        f.add(key)
    g.update(np.array(keys))
    assert f.to_bytes() == g.to_bytes()
    assert f.contains(keys).all()


@check_of_sets
def overrun_is_visible(specimen):
    if not specimen.inserts:
        return
    f = specimen.make(1000, fpr=2**-8)
    f.update(range(900))
    rate = f.expected_fpr
    if specimen.bounded:
        before = f.to_bytes()
        for more in (range(900, 4000), np.arange(900, 4000), [str(i) for i in range(3000)]):
            with pytest.raises(tamis.CapacityError, match="no room"):
                f.update(more)
            assert f.to_bytes() == before
        return
    with pytest.warns(tamis.CapacityWarning, match="its capacity of 1000"):
        f.update(range(3000))
    f.update(range(3000, 3100))  # said once: a second warning would be an error here
    f.add("one more")
    assert len(f) > 2500
    assert f.expected_fpr > 2 * rate
    assert f.contains(range(3100)).all()
    trials = 200_000
    measured = f.contains(np.arange(10_000, 10_000 + trials)).mean()
    assert within_noise(measured, f.fpr_bound, trials)


@check
def warns_above_its_capacity(specimen):
    """Not at its capacity; above it at once if it counts slots, or within a twentieth."""
    if not specimen.inserts:
        return
    capacity = 20_000
    more = range(capacity, capacity + (1 if specimen.bounded else capacity // 20))
    for seed, at_once in enumerate((True, False, True, False)):
        f = specimen.make(capacity, fpr=2**-8, seed=seed)
        f.update(np.arange(capacity))  # a warning would be an error here
        if not (specimen.deletes or specimen.bounded):  # what is stored once, is counted once
            f.update(np.arange(capacity))
            f.update(list(range(capacity)))
        with pytest.warns(tamis.CapacityWarning) if specimen.warns else nullcontext() as told:
            if at_once:
                f.update(more)
            else:
                for key in more:
                    f.add(key)
        assert not specimen.warns or len(told) == 1


@check_of_sets
def overrun_is_visible_at_any_rate(specimen):
    if not specimen.inserts or specimen.bounded:
        return
    rate = 0.4  # but fingerprints of one bit have none to give
    if specimen.deletes:
        rate = 0.01 if specimen.layered else 0.05
    f = specimen.make(10_000, fpr=rate)
    with pytest.warns(tamis.CapacityWarning):
        f.update(np.arange(25_000))
    assert len(f) > 20_000
    assert f.expected_fpr > rate


@check
def merges_what_it_says(specimen):
    if not specimen.cls.merges:
        return
    f, g = specimen.make(3000, fpr=0.01), specimen.make(3000, fpr=0.01)
    f.update(range(1000))
    g.update(range(500, 2000))
    both = f | g
    assert type(both) is type(f)
    assert both.contains(range(2000)).all()
    measured = both.contains(np.arange(10_000, 110_000)).mean()
    assert within_noise(measured, both.expected_fpr, 100_000)
    assert f.contains(range(1000)).all()
    assert not f.contains(range(1000, 2000)).all()
    with pytest.raises(tamis.IncompatibleError, match="only if they have the same seed or key"):
        f | specimen.make(3000, fpr=0.01, seed=1)
    with pytest.raises(tamis.IncompatibleError):
        f | specimen.make(3500, fpr=0.01)
    with pytest.raises(TypeError):
        f | {1, 2}


@check
def gives_back_what_it_took(specimen):
    if not specimen.deletes:
        return
    f = specimen.make(3000, fpr=0.001)
    empty = f.to_bytes()
    f.update(range(3000))
    for key in range(1000):
        f.remove(key)
    assert f.contains(range(1000, 3000)).all()
    assert f.contains(range(1000)).mean() < 0.01 + 2 * f.fpr_bound
    assert len(f) == 2000
    for key in range(1000, 3000):
        f.remove(key)
    assert f.to_bytes() == empty
    with pytest.raises(KeyError):
        f.remove("never there")


@check_of_sets
def answers_while_one_adds(specimen):
    if not specimen.inserts:
        return
    n = 60_000
    f = specimen.make(n, fpr=0.01)
    added, denied, done = [0], [], threading.Event()

    def ask():
        while not done.is_set():
            known = added[0]
            keys = np.arange(known)
            if not f.contains(keys).all() or (known and known - 1 not in f):
                denied.append(known)

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(0, n, 500):
        f.update(np.arange(start, start + 400))
        for key in range(start + 400, start + 500):
            f.add(key)
        added[0] = start + 500
    done.set()
    for reader in readers:
        reader.join()
    assert not denied
    assert len(f) > (0.99 - f.fpr_bound) * n  # Bloom counts what changes bits


@check_of_sets
def is_saved_while_one_adds(specimen):
    """Every snapshot is whole: it opens, and holds what was in before it was asked for."""
    if not specimen.inserts:
        return
    n = 20_000
    f = specimen.make(n if specimen.bounded else 1000, fpr=2**-12)
    added, failures, done = [0], [], threading.Event()

    def snapshot():
        while not done.is_set():
            known = added[0]
            for twin in (tamis.from_bytes(f.to_bytes()), f.copy(), pickle.loads(pickle.dumps(f))):
                if not twin.contains(np.arange(known)).all():
                    failures.append(known)

    readers = [threading.Thread(target=snapshot, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tamis.CapacityWarning)
        for start in range(0, n, 200):
            f.update(list(range(start, start + 199)))
            f.add(start + 199)
            added[0] = start + 200
    done.set()
    for reader in readers:
        reader.join(timeout=60)
        assert not reader.is_alive(), "a snapshot hangs"
    assert not failures


@check_of_sets
def is_merged_while_others_add(specimen):
    """Two threads merge two filters in either order, and each with itself, while both take keys."""
    merges = specimen.build([1], fpr=0.01)
    try:
        merges | merges
    except (tamis.IncompatibleError, TypeError):
        return
    n = 20_000
    f, g = (specimen.make(4 * n if specimen.bounded else n, fpr=2**-8) for _ in range(2))
    f.update(np.arange(100))
    failures, done = [], threading.Event()

    def merge(one, other):
        while not done.is_set():
            try:
                for both in (one | other, other | one, one | one):
                    if not both.contains(np.arange(100)).all():
                        failures.append("a key is missing")
            except tamis.TamisError as error:
                failures.append(error)

    merging = [threading.Thread(target=merge, args=pair, daemon=True) for pair in ((f, g), (g, f))]
    g.update(np.arange(100))
    for thread in merging:
        thread.start()
    for start in range(100, n, 100):
        f.update(np.arange(start, start + 100))
        g.update(np.arange(start, start + 100))
    done.set()
    for thread in merging:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a merge hangs"
    assert not failures


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
