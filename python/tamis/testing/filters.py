"""The contract of a filter: what it answers, how often it errs, and the memory it takes."""

from __future__ import annotations

import inspect
import math
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import numpy as np

import tamis
from tamis.errors import IncompatibleError

ODD_KEYS: tuple[Any, ...] = (
    [-1, -(2**63), 2**31, 2**63, 2**64 - 1],
    ["", "é", "\0", "a" * 300],
    [b"\0", b"\xff" * 40],
)

SIGMAS = 5.0
"""A fair sample leaves this many standard deviations once in 1.7 million checks."""


@dataclass(frozen=True)
class FilterCase:
    """A filter class, the arguments that choose one of its forms, and its exceptions.

    No check names a class: a filter that is an exception to a check says so here.
    """

    cls: Any
    arguments: dict[str, Any] = field(default_factory=dict)
    maker: Callable[..., Any] | None = None
    """Creates an empty filter from a capacity and a rate, if the class needs more arguments."""
    empty_arguments: dict[str, Any] | None = None
    """Arguments of ``build`` for an empty filter, if the class has no constructor for one."""
    layered: bool = False
    """The layers decide what the filter supports, so the class has every method."""
    learns: bool = False
    """The filter reaches its rate only after false positives were reported to it."""
    holds_classifier: bool = False
    """A classifier is part of the filter and may exceed a small budget alone."""
    warns: bool = True
    """The filter warns above its capacity. Others grow, refuse keys, or are streams."""
    searched: bool = False
    """A search chooses the sizes, so a better search changes the bytes."""

    def __str__(self) -> str:
        named = [getattr(value, "__name__", value) for value in self.arguments.values()]
        shown = (str(value) for value in named if type(value) in (str, int))
        return "-".join([self.cls.__name__, *shown])

    @property
    def ours(self) -> bool:
        """Whether this is a filter of tamis, with its files, arguments and messages."""
        return isinstance(self.cls, type) and issubclass(self.cls, tamis.Filter)

    def takes(self, argument: str) -> bool:
        """Tell whether ``build`` takes an argument."""
        return self.ours or argument in inspect.signature(self.cls.build).parameters

    def build(self, keys: Any, **goal: Any) -> Any:
        """Build a filter of these keys; a seed is left out if the class takes none."""
        if not self.takes("seed"):
            goal.pop("seed", None)
        if self.maker is None:
            return self.cls.build(keys, **(self.arguments | goal))
        made = self.make(max(len(keys), 1), **goal)
        made.update(keys)
        return made

    @property
    def make(self) -> Callable[..., Any]:
        """Create an empty filter with a capacity."""
        if self.maker is not None:
            return self.maker
        if self.empty_arguments is not None:
            return partial(self._empty, **self.empty_arguments)
        return partial(self.cls, **self.arguments)

    def _empty(self, capacity: int, **goal: Any) -> Any:
        return self.build([], capacity=capacity, **goal)

    def can(self, ability: str) -> bool:
        """Tell whether a filter of this case has an ability, such as ``"inserts"``."""
        return bool(getattr(self.build([1], fpr=0.01), ability, False))

    @property
    def inserts(self) -> bool:
        """Whether keys can be added after the build."""
        return self.can("inserts")

    @property
    def deletes(self) -> bool:
        """Whether keys can be removed."""
        return self.can("deletes")

    @property
    def bounded(self) -> bool:
        """Whether the filter refuses keys beyond its capacity."""
        return self.can("bounded")

    @property
    def one_sided(self) -> bool:
        """Whether the filter holds a set. A stream forgets old keys."""
        return bool(getattr(self.cls, "one_sided", True))


def of_sets(check: Callable[[FilterCase], None]) -> Callable[[FilterCase], None]:
    """Apply a check only to filters that hold a set, not to streams."""

    @wraps(check)
    def checked(case: FilterCase) -> None:
        if case.one_sided:
            check(case)

    return checked


def of_tamis(check: Callable[[FilterCase], None]) -> Callable[[FilterCase], None]:
    """Apply a check of files, arguments or messages only to filters of tamis."""

    @wraps(check)
    def checked(case: FilterCase) -> None:
        if case.ours:
            check(case)

    return checked


@contextmanager
def raises(error: Any, match: str = "") -> Iterator[None]:
    """Check that the block raises this error, with a message that matches."""
    try:
        yield
    except error as raised:
        if not re.search(match, str(raised)):
            raise AssertionError(f"the message was {str(raised)!r}, not {match!r}") from raised
    else:
        raise AssertionError(f"{error} was not raised")


@contextmanager
def warns(category: type[Warning], match: str = "") -> Iterator[list[Any]]:
    """Check that the block gives a warning that matches; yield all of this category."""
    found: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [each for each in caught if issubclass(each.category, category)]
    assert any(re.search(match, str(each.message)) for each in found), f"no {category.__name__}"


def within_noise(measured: float, expected: float, trials: int) -> bool:
    """Tell whether a coin with this bias would give such a share of the trials.

    >>> within_noise(0.0101, 0.01, 100_000), within_noise(0.02, 0.01, 100_000)
    (True, False)
    """
    sigma = math.sqrt(max(expected * (1 - expected), 0) / trials)
    return bool(abs(measured - expected) <= SIGMAS * sigma + 1 / trials)


def content(f: Any) -> bytes:
    """Return a filter as bytes: of its file, or of its pickle."""
    saved: bytes = f.to_bytes() if hasattr(f, "to_bytes") else pickle.dumps(f)
    return saved


def rate_of_unknown(f: Any) -> float:
    """Return the expected rate for absent keys that the filter knows nothing about."""
    return float(getattr(f, "fpr_bound", f.expected_fpr))


class Stranger(tamis.Sharded):
    """A filter of another class than any case."""


@of_sets
def denies_no_key(case: FilterCase) -> None:
    """A key that was added is accepted, whatever its type and the size of the set."""
    for n in (0, 1, 2, 3, 17, 100, 5000):
        for keys in (
            list(range(n)),
            [f"key {i}" for i in range(n)],
            np.arange(n, dtype=np.uint32),
        ):
            f = case.build(keys, fpr=0.01, seed=n)
            assert f.contains(keys).all()
            assert all(key in f for key in list(keys)[:200])
            assert len(f) == n
    for odd in ODD_KEYS:
        f = case.build(odd, fpr=0.01)
        assert f.contains(odd).all(), odd
        assert all(key in f for key in odd), odd


@of_sets
def holds_many_keys(case: FilterCase) -> None:
    """A large set is held as well as a small one, and errs as expected."""
    n, trials = 200_000, 200_000
    keys = np.arange(n)
    f = case.build(keys, fpr=0.01)
    assert len(f) == n
    assert f.contains(keys).all()
    assert all(key in f for key in range(0, n, 997))
    measured = f.contains(np.arange(n, n + trials)).mean()
    assert within_noise(measured, rate_of_unknown(f), trials), (measured, rate_of_unknown(f))


@of_sets
def answers_alike_one_by_one(case: FilterCase) -> None:
    """A query for one key and a batch give the same answers."""
    f = case.build(range(1000), fpr=0.1)
    queries = range(900, 3000)
    assert [key in f for key in queries] == f.contains(queries).tolist()


def empty_set_says_no(case: FilterCase) -> None:
    """A filter of no keys accepts nothing."""
    f = case.build([], fpr=0.01)
    assert len(f) == 0
    assert f.expected_fpr == 0
    assert "a" not in f
    assert not f.contains(range(100)).any()
    assert f.contains([]).shape == (0,)
    assert f.bits_per_key == f.size_in_bits


@of_sets
def errs_as_expected(case: FilterCase) -> None:
    """The measured, the expected and the requested rate agree."""
    n, trials = 20_000, 200_000
    for seed, rate in enumerate((0.3, 0.05, 2**-8, 0.001)):
        f = case.build(np.arange(n), fpr=rate, seed=seed)
        measured = f.contains(np.arange(n, n + trials)).mean()
        expected = rate_of_unknown(f)
        assert within_noise(measured, expected, trials), (measured, expected)
        # At this size the content of a filter varies by far less than a tenth; whole bits may
        # make the rate lower than requested.
        if not case.learns:
            assert 0.2 * rate <= f.expected_fpr <= 1.1 * rate


@of_sets
def keeps_to_the_budget(case: FilterCase) -> None:
    """A filter takes no more bits per key than asked, and more bits give a lower rate."""
    if not case.takes("bits_per_key"):
        return
    n = 20_000
    rates = []
    for budget in (6, 8.5, 12, 20):
        f = case.build(np.arange(n), bits_per_key=budget)
        assert f.bits_per_key <= budget
        assert f.bits_per_key == f.size_in_bits / n
        rates.append(f.expected_fpr)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.01


@of_sets
def small_sets_take_a_budget_too(case: FilterCase) -> None:
    """Below the smallest size of a structure no budget can be kept, but nothing fails."""
    if case.holds_classifier or not case.takes("bits_per_key"):
        return
    for n in (0, 1, 2, 50):
        f = case.build(range(n), bits_per_key=12)
        assert f.contains(range(n)).all()
        assert f.size_in_bits <= 8192


@of_sets
def build_removes_duplicates(case: FilterCase) -> None:
    """Repeated keys are counted and stored once."""
    keys = [f"key {i % 700}" for i in range(3000)]
    once = case.build(sorted(set(keys)), fpr=0.01)
    f = case.build(keys, fpr=0.01)
    assert len(f) == 700
    assert content(f) == content(once)


@of_sets
def same_input_same_bytes(case: FilterCase) -> None:
    """The same keys in any order give the same bytes, and another seed gives others."""
    keys = np.random.default_rng(1).integers(0, 2**63, 2000)
    one = content(case.build(keys, fpr=0.01))
    assert one == content(case.build(keys.tolist()[::-1], fpr=0.01))
    if case.takes("seed"):
        assert one != content(case.build(keys, fpr=0.01, seed=1))


@of_tamis
def says_what_it_can(case: FilterCase) -> None:
    """Methods exist where the attributes say so; the error of a missing one names other filters."""
    f = case.build([1], fpr=0.01)
    cls = case.cls
    if not case.layered:
        assert hasattr(f, "add") == hasattr(f, "update") == cls.inserts
        assert hasattr(f, "remove") == cls.deletes
        for name, able in (("add", cls.inserts), ("remove", cls.deletes)):
            if not able:
                with raises(AttributeError, match=f"{cls.__name__} filter; use one of .*Cuckoo"):
                    getattr(f, name)
    if not cls.merges:
        with raises(IncompatibleError, match="cannot be merged"):
            f | f
    with raises(IncompatibleError):
        f | Stranger.build([1], fpr=0.01)
    assert isinstance(cls.one_sided, bool)
    assert cls.__name__ in repr(f)


@of_tamis
@of_sets
def refuses_bad_arguments(case: FilterCase) -> None:
    """A wrong argument is refused by name."""
    build = case.build
    wrong: dict[str, Any]
    for wrong in ({}, {"fpr": 0.1, "bits_per_key": 9}):
        with raises(ValueError, match="pass exactly one of"):
            build([1], **wrong)
    for rate in (0, 1, -0.1, 2, float("nan")):
        with raises(ValueError, match="fpr must be"):
            build([1], fpr=rate)
    for budget in (0, -1, float("inf"), float("nan")):
        with raises(ValueError, match="bits_per_key must be"):
            build([1], bits_per_key=budget)
    for seed, error in ((-1, ValueError), (2**64, ValueError), ("a", TypeError)):
        with raises(error, match="an int from 0 to"):
            build([1], fpr=0.1, seed=seed)
    if case.inserts:
        for capacity, error in ((-1, ValueError), (1.5, TypeError), (2**60, ValueError)):
            with raises(error, match="capacity must be"):
                case.make(capacity, fpr=0.1)
        with raises((MemoryError, ValueError)):
            case.make(2**47, fpr=1e-9)


CHECKS = (
    denies_no_key,
    answers_alike_one_by_one,
    empty_set_says_no,
    errs_as_expected,
    holds_many_keys,
    keeps_to_the_budget,
    small_sets_take_a_budget_too,
    build_removes_duplicates,
    same_input_same_bytes,
    says_what_it_can,
    refuses_bad_arguments,
)
