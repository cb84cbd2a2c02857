"""The contract of filters that change: insertions, removals, merges, and concurrent threads."""

from __future__ import annotations

import pickle
import threading
import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np

import tamis
from tamis.errors import CapacityError, CapacityWarning, IncompatibleError, TamisError
from tamis.testing.filters import (
    FilterCase,
    content,
    of_sets,
    of_tamis,
    raises,
    rate_of_unknown,
    warns,
    within_noise,
)


@of_tamis
def insertion_is_all_or_nothing(case: FilterCase) -> None:
    """A batch with a wrong key changes nothing."""
    if not case.inserts:
        return
    f = case.make(10, fpr=0.01)
    before = f.to_bytes()
    for bad in (["a", "b", None], ["a", 1], [1, 2, 2.5], ["a", "b", "\ud800"]):
        with raises(TypeError):
            f.update(bad)
    with raises(OverflowError):
        f.update([1, 2, 2**64])
    assert f.to_bytes() == before


@of_tamis
def a_long_batch_is_all_or_nothing(case: FilterCase) -> None:
    """Also where the wrong key comes after thousands of right ones."""
    if not case.inserts:
        return
    numbers, text = list(range(5000)), [f"key {i}" for i in range(5000)]
    f = case.make(9000, fpr=2**-6)
    f.update(range(1000))
    before = f.to_bytes()
    for bad in (
        [*numbers, None],
        [*numbers, "text"],
        [*text, 1.5],
        [*text, "\ud800"],
        np.array([*text, None], dtype=object),
        np.array([*text, "\ud800"]),
    ):
        with raises(TypeError):
            f.update(bad)
        assert f.to_bytes() == before
    if not case.bounded:
        return
    held, asked = f.contains(np.arange(100_000)), np.arange(100_000)
    more = np.arange(1000, 41_000)
    for batch in (more, more.tolist(), [str(i) for i in more], np.array(text * 9)):
        with raises(CapacityError):
            f.update(batch)
        assert len(f) == 1000
        assert (f.contains(asked) == held).all()
    f.update(more[:7000])  # all slots are free again
    for key in range(1000):
        f.remove(key)
    assert len(f) == 7000
    assert f.contains(more[:7000]).all()


def one_by_one_or_all_at_once(case: FilterCase) -> None:
    """Single insertions and batches give the same filter."""
    if not case.inserts:
        return
    keys = list(range(2000))
    f, g = case.make(2000, fpr=0.01), case.make(2000, fpr=0.01)
    for key in keys:
        f.add(key)
    g.update(np.array(keys))
    assert content(f) == content(g)
    assert f.contains(keys).all()


@of_sets
def many_keys_are_added(case: FilterCase) -> None:
    """A filter of a large capacity keeps every key that is added to it."""
    if not case.inserts:
        return
    n = 200_000
    f = case.make(n, fpr=0.01)
    for start in range(0, n, 20_000):
        f.update(np.arange(start, start + 20_000))
    assert f.contains(np.arange(n)).all()


@of_tamis
@of_sets
def overrun_is_visible(case: FilterCase) -> None:
    """Above its capacity a filter refuses keys, or warns and expects a higher rate."""
    if not case.inserts:
        return
    f = case.make(1000, fpr=2**-8)
    f.update(range(900))
    rate = f.expected_fpr
    if case.bounded:
        before = f.to_bytes()
        for more in (range(900, 4000), np.arange(900, 4000), [str(i) for i in range(3000)]):
            with raises(CapacityError):
                f.update(more)
            assert f.to_bytes() == before
        return
    with warns(CapacityWarning, match="its capacity of 1000"):
        f.update(range(3000))
    f.update(range(3000, 3100))  # warns once: a second warning would be an error here
    f.add("one more")
    assert len(f) > 2500
    assert f.expected_fpr > 2 * rate
    assert f.contains(range(3100)).all()
    trials = 200_000
    measured = f.contains(np.arange(10_000, 10_000 + trials)).mean()
    assert within_noise(measured, rate_of_unknown(f), trials)


@of_tamis
def warns_above_its_capacity(case: FilterCase) -> None:
    """No warning at the capacity; above it, at the first key or within 5 % of the capacity."""
    if not case.inserts:
        return
    capacity = 20_000
    more = range(capacity, capacity + (1 if case.bounded else capacity // 20))
    for seed, at_once in enumerate((True, False, True, False)):
        f = case.make(capacity, fpr=2**-8, seed=seed)
        f.update(np.arange(capacity))  # a warning would be an error here
        if not (case.deletes or case.bounded):  # repeated keys are counted once
            f.update(np.arange(capacity))
            f.update(list(range(capacity)))
        expected: Any = warns(CapacityWarning) if case.warns else nullcontext([])
        with expected as given:
            if at_once:
                f.update(more)
            else:
                for key in more:
                    f.add(key)
        assert len(given) == case.warns


@of_tamis
@of_sets
def overrun_is_visible_at_any_rate(case: FilterCase) -> None:
    """The same for filters that err often."""
    if not case.inserts or case.bounded:
        return
    rate = 0.4
    if case.deletes:  # growth takes bits from the fingerprints
        rate = 0.01 if case.layered else 0.05
    f = case.make(10_000, fpr=rate)
    with warns(CapacityWarning):
        f.update(np.arange(25_000))
    assert len(f) > 20_000
    assert f.expected_fpr > rate


def merges_what_it_says(case: FilterCase) -> None:
    """A merged filter holds the keys of both."""
    if not case.can("merges"):
        return
    f, g = case.make(3000, fpr=0.01), case.make(3000, fpr=0.01)
    f.update(range(1000))
    g.update(range(500, 2000))
    both = f | g
    assert type(both) is type(f)
    assert both.contains(range(2000)).all()
    measured = both.contains(np.arange(10_000, 110_000)).mean()
    assert within_noise(measured, both.expected_fpr, 100_000)
    assert f.contains(range(1000)).all()
    assert not f.contains(range(1000, 2000)).all()
    if not case.ours:
        return
    with raises(IncompatibleError, match="only if they have the same seed or key"):
        f | case.make(3000, fpr=0.01, seed=1)
    with raises(IncompatibleError):
        f | case.make(3500, fpr=0.01)
    with raises(TypeError):
        _ = f | {1, 2}


def gives_back_what_it_took(case: FilterCase) -> None:
    """Removed keys are gone, and the others stay."""
    if not case.deletes:
        return
    f = case.make(3000, fpr=0.001)
    empty = content(f)
    f.update(range(3000))
    for key in range(1000):
        f.remove(key)
    assert f.contains(range(1000, 3000)).all()
    assert f.contains(range(1000)).mean() < 0.01 + 2 * rate_of_unknown(f)
    assert len(f) == 2000
    for key in range(1000, 3000):
        f.remove(key)
    assert content(f) == empty or not case.ours
    with raises(KeyError):
        f.remove("never there")


@of_sets
def keys_are_added_again(case: FilterCase) -> None:
    """Adding a key again denies nothing, and does not raise the rate beyond the expected one."""
    if not case.inserts:
        return
    f = case.make(6000, fpr=2**-8)
    f.update(range(2000))
    f.update(range(500))
    for key in range(500, 1000):
        f.add(key)
    assert f.contains(range(2000)).all()
    assert all(key in f for key in range(2000))
    measured = f.contains(np.arange(10_000, 210_000)).mean()
    assert within_noise(measured, rate_of_unknown(f), 200_000)


@of_sets
def a_key_is_removed_as_often_as_it_was_added(case: FilterCase) -> None:
    """A key that was added twice is accepted until it was removed twice."""
    if not case.deletes:
        return
    f = case.make(3000, fpr=2**-10)
    f.update(range(1000))
    f.update(range(500))
    for key in range(500):
        f.remove(key)
    assert f.contains(range(1000)).all()
    for key in range(500):
        f.remove(key)
    assert f.contains(range(500, 1000)).all()
    assert f.contains(range(500)).mean() < 0.01 + 2 * rate_of_unknown(f)
    assert len(f) == 500


@of_sets
def an_absent_key_is_not_removed(case: FilterCase) -> None:
    """Removing a key that the filter rejects raises KeyError and changes nothing."""
    if not case.deletes:
        return
    f = case.make(1000, fpr=2**-8)
    f.update(range(900))
    before = content(f)
    absent = [key for key in range(10_000, 12_000) if key not in f]
    for key in absent:
        with raises(KeyError):
            f.remove(key)
    assert len(f) == 900
    assert f.contains(range(900)).all()
    assert content(f) == before


@of_sets
def answers_while_one_adds(case: FilterCase) -> None:
    """Readers miss no key that was added before they asked."""
    if not case.inserts:
        return
    n = 60_000
    f = case.make(n, fpr=0.01)
    denied: list[int] = []
    added, done = [0], threading.Event()

    def ask() -> None:
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
    assert len(f) > (0.99 - rate_of_unknown(f)) * n  # Bloom counts what changes bits


@of_tamis
@of_sets
def is_saved_while_one_adds(case: FilterCase) -> None:
    """Every copy opens, and holds the keys that were added before it was made."""
    if not case.inserts:
        return
    n = 20_000
    f = case.make(n if case.bounded else 1000, fpr=2**-12)
    failures: list[int] = []
    added, done = [0], threading.Event()

    def snapshot() -> None:
        while not done.is_set():
            known = added[0]
            for twin in (tamis.from_bytes(f.to_bytes()), f.copy(), pickle.loads(pickle.dumps(f))):
                if not twin.contains(np.arange(known)).all():
                    failures.append(known)

    readers = [threading.Thread(target=snapshot, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CapacityWarning)
        for start in range(0, n, 200):
            f.update(list(range(start, start + 199)))
            f.add(start + 199)
            added[0] = start + 200
    done.set()
    for reader in readers:
        reader.join(timeout=60)
        assert not reader.is_alive(), "a snapshot hangs"
    assert not failures


@of_sets
def is_merged_while_others_add(case: FilterCase) -> None:
    """Threads merge two filters in either order, and each with itself, while keys are added."""
    merges = case.build([1], fpr=0.01)
    try:
        _ = merges | merges
    except (IncompatibleError, TypeError):
        return
    n = 20_000
    f, g = (case.make(4 * n if case.bounded else n, fpr=2**-8) for _ in range(2))
    f.update(np.arange(100))
    failures: list[Any] = []
    done = threading.Event()

    def merge(one: Any, other: Any) -> None:
        while not done.is_set():
            try:
                for both in (one | other, other | one, one | one):
                    if not both.contains(np.arange(100)).all():
                        failures.append("a key is missing")
            except TamisError as error:
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


CHECKS = (
    insertion_is_all_or_nothing,
    a_long_batch_is_all_or_nothing,
    one_by_one_or_all_at_once,
    many_keys_are_added,
    overrun_is_visible,
    warns_above_its_capacity,
    overrun_is_visible_at_any_rate,
    merges_what_it_says,
    gives_back_what_it_took,
    keys_are_added_again,
    a_key_is_removed_as_often_as_it_was_added,
    an_absent_key_is_not_removed,
    answers_while_one_adds,
    is_saved_while_one_adds,
    is_merged_while_others_add,
)
