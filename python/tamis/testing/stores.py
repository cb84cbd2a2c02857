"""The contract of a store: what a guard relies on."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from tamis.errors import LeaseError
from tamis.testing.filters import raises

KEYS: Any = ["text", "é", "", b"\0\xff", 0, -1, 2**63, 2**64 - 1, -(2**63), "1", 1]
ALL = (0, 2**64 - 1)

EXPIRY = 30.0
"""Seconds to wait for a lease of a fraction of a second to end: a store may add some of its own."""


class Writer:
    """A store that is written without a guard: with the lease, and from position to position."""

    def __init__(self, store: Any) -> None:
        self.store, self.owner = store, "writer"
        assert store.lease(self.owner, 600)
        self.position, parts = store.contents()
        for _ in parts:  # to its end, which closes its transaction
            pass

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.release(self.owner)
        self.store.close()

    def attach(self, seed: int) -> None:
        """Let the store index keys by this seed."""
        name = b"seed %d" % seed
        self.store.attach(self.owner, lambda keys: tamis.hash_keys(keys, seed=seed), name)

    def put(self, keys: Any, value: str = "x") -> list[bool]:
        """Write keys; check the changes of the commit."""
        keys = [*keys]
        commit = self.store.put_many(keys, [value] * len(keys), self.owner, self.position)
        new = [key for key, was in zip(keys, commit.existed, strict=True) if not was]
        self._move(commit.changes, new, [])
        existed: list[bool] = commit.existed
        return existed

    def delete(self, keys: Any) -> list[bool]:
        """Delete keys; check the changes of the commit."""
        keys = [*keys]
        commit = self.store.delete_many(keys, self.owner, self.position)
        self._move(commit.changes, [], [*compress(keys, commit.existed)])
        existed: list[bool] = commit.existed
        return existed

    def _move(self, changes: Any, added: list[Any], removed: list[Any]) -> None:
        if changes is None:
            changes = self.store.changes(self.position)
        assert not changes.more
        assert sorted(changes.added, key=repr) == sorted(added, key=repr)
        assert sorted(changes.removed, key=repr) == sorted(removed, key=repr)
        self.position = changes.position


@dataclass(frozen=True)
class StoreCase:
    """A function that opens the same store again, as another process would."""

    open: Callable[[], Any]
    exclusive: bool = False
    """Only one process can open the store at a time, so two guards cannot compete for it."""

    def writer(self) -> Writer:
        """Return the store with a lease on it."""
        store = self.open()
        return Writer(store)

    def guard(self, seed: int = 1, **options: Any) -> tamis.Guard:
        """Return a guard in front of the store."""
        return tamis.Guard(self.open(), tamis.Quotient(10_000, fpr=2**-4, seed=seed), **options)


def _sorted(hashes: Any) -> Any:
    return hashes[np.lexsort(hashes.T[::-1])]


def keys_and_values_come_back(case: StoreCase) -> None:
    """Text, bytes and integers come back as they were put, and deleted keys do not."""
    with case.guard() as g:
        g.put_many((key, f"value of {key!r}") for key in KEYS)
        g.put_many({"bytes": b"\0\xff", "empty": b"", "nothing": ""})
        assert g.get_many(KEYS) == [f"value of {key!r}" for key in KEYS]
        assert g.get_many(["bytes", "empty", "nothing"]) == [b"\0\xff", b"", ""]
        assert {k for k in g if isinstance(k, int)} == {k for k in KEYS if isinstance(k, int)}
        assert len(list(g)) == len(KEYS) + 3
        g.put("bytes", "again")
        assert g.get("bytes") == "again"
        mixed: Any = ["bytes", "absent", -1, 0]
        assert g.delete_many(mixed[:3]) == [True, False, True]
        assert g.get_many(mixed) == [None, None, None, "value of 0"]


def long_keys_and_values_come_back(case: StoreCase) -> None:
    """Keys of 2,000 bytes and values of a megabyte come back unchanged."""
    random = np.random.default_rng(1)
    start = random.bytes(1999)
    keys: list[Any] = [start + b"a", start + b"b", "é" * 999 + "a", "é" * 999 + "b"]
    values = [random.bytes(1 << 20), b"x", "é" * (1 << 19), "y"]
    with case.guard() as g:
        for key, value in zip(keys, values, strict=True):
            g.put(key, value)
        for key, value in zip(keys, values, strict=True):
            assert g.get(key) == value
        assert g.get(start) is None
        assert g.delete_many(keys[::2]) == [True, True]
        assert g.get_many(keys) == [None, b"x", None, "y"]


def contents_are_complete(case: StoreCase) -> None:
    """`contents` returns each key once, and the position at which they are the keys."""
    count = 10_000  # several batches
    with case.writer() as w:
        assert [key for part in w.store.contents()[1] for key in part] == []
        w.put(range(count))
        w.put(b"key %d" % i for i in range(100))
        w.delete(range(0, count, 3))
        position, parts = w.store.contents()
        found = [key for part in parts for key in part]
        expected = {i for i in range(count) if i % 3} | {b"key %d" % i for i in range(100)}
        assert len(found) == len(expected)
        assert {key.encode() if isinstance(key, str) else key for key in found} == expected
        changes = w.store.changes(position)
        assert changes is not None
        assert (changes.added, changes.removed, changes.more) == ([], [], False)


def index_holds_the_hash_of_every_key(case: StoreCase) -> None:
    """The index of hashes equals the hashes of the stored keys, in every range."""
    with case.writer() as w:
        w.put(range(100))  # before there is an index
        w.attach(9)
        w.put(range(100, 6000))
        w.delete(range(1000))
        w.put(range(500, 2000))
        expected = _sorted(tamis.hash_keys(range(500, 6000), seed=9))
        assert (_sorted(np.concatenate(list(w.store.scan()))) == expected).all()
        words = expected[:, 0]
        ranges = [
            ALL,
            (0, 0),
            (2**63 - 10, 2**63 + 2**58),
            (int(words[3]), int(words[9])),
            (int(words[9]), int(words[9])),
            (2**64 - 2**57, 2**64 - 1),
        ]
        for (lo, hi), together in zip(ranges, w.store.runs(ranges), strict=True):
            run = w.store.run(lo, hi)
            assert run.dtype == np.uint64
            within = expected[(words >= np.uint64(lo)) & (words <= np.uint64(hi))]
            assert (_sorted(run) == within).all()
            assert (_sorted(together) == within).all()
        assert w.store.runs([]) == []


def another_seed_rebuilds_the_index(case: StoreCase) -> None:
    """For another hash, the store rebuilds the index; it also finds keys written without one."""
    for seed in (1, 2, None, 2):
        with case.writer() as w:
            if seed is not None:
                w.attach(seed)
            w.put(range(50))
            w.delete(range(seed or 5))
            if seed is not None:
                expected = _sorted(tamis.hash_keys(range(seed, 50), seed=seed))
                assert (_sorted(w.store.run(*ALL)) == expected).all()


def positions_name_states_of_the_set(case: StoreCase) -> None:
    """The changes since a position lead to now, and a token changes with the set of keys."""
    with case.writer() as w:
        writes: list[tuple[bool, Callable[[], Any]]] = [
            (True, lambda: w.put([1], "x")),
            (False, lambda: w.put([1], "y")),
            (True, lambda: w.put([1, 2], "z")),
            (True, lambda: w.delete([1])),
            (False, lambda: w.delete([1])),
            (True, lambda: w.put([1], "x")),
        ]
        tokens = [w.store.change_token()]
        for change, write in writes:
            before = w.position
            write()
            if change:
                assert w.position != before
            changes = w.store.changes(w.position)
            assert changes is not None
            assert (changes.added, changes.removed) == ([], [])
            token = w.store.change_token()
            assert token is None or not change or token not in tokens
            tokens.append(token)


def a_snapshot_outlives_the_process(case: StoreCase) -> None:
    """A saved filter is used again, and is brought up to date if the store has changed since."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "filter"
        with case.guard(snapshot=path) as g:
            g.put_many((i, "x") for i in range(100))
        with case.guard(snapshot=path) as g:
            assert g.stats.rebuilds == 0
            assert g.get_many(range(100)) == ["x"] * 100
        with case.guard() as g:  # which saves nothing
            g.put(100, "y")
            g.delete(0)
        with case.guard(snapshot=path) as g:
            assert g.get_many([0, 1, 100]) == [None, "x", "y"]
            assert g.stats.passed == 0


def changes_come_in_pieces(case: StoreCase) -> None:
    """A journal, where the store has one, gives the net changes since a position.

    Changes that are complete include all writes before the call, also between two pieces, and a
    position at the end of a piece stays known if others ask for changes meanwhile.
    """
    with case.writer() as w:
        since = start = w.position
        for first in range(0, 10, 2):
            w.put(range(first, first + 2))
        w.delete([3, 4])
        w.put([4])
        stored, held = {*range(10)} - {3}, set[Any]()
        while (changes := w.store.changes(since, limit=2)) is not None:
            assert not held.intersection(changes.added)
            assert held.issuperset(changes.removed)
            held = held.union(changes.added).difference(changes.removed)
            since = changes.position
            if not changes.more:
                assert held == stored
                break
            if len(stored) < 14:
                w.put([len(stored) + 10])
                stored.add(len(stored) + 10)
                w.store.changes(start, limit=1)


def one_writer_at_a_time(case: StoreCase) -> None:
    """The store refuses writes of a guard that does not hold the lease."""
    if case.exclusive:
        return
    one = case.guard(lease=60)
    with case.guard(lease=60) as two:
        with one:
            one.put("a", "1")
            with raises(LeaseError):
                two.put("b", "2")
            with raises(LeaseError):
                two.store.put_many([b"b"], ["2"], "no owner", "")
            assert two.get_many(["a", "b"]) == ["1", None]
        two.put("b", "2")
        assert two.get_many(["a", "b"]) == ["1", "2"]


def a_lease_expires(case: StoreCase) -> None:
    """A lease that is not renewed ends, and its owner can no longer write."""
    store = case.open()
    assert store.lease("one", 0.2)
    deadline = time.monotonic() + EXPIRY
    while not store.lease("two", 0.2):  # a store may wait as long as the lease that is asked for
        assert time.monotonic() < deadline, f"a lease of 0.2 s is still held after {EXPIRY} s"
        time.sleep(0.05)
    assert store.lease("two", 600)
    assert not store.lease("one", 600)
    store.put_many([1], ["x"], "two", "")
    with raises(LeaseError):
        store.put_many([2], ["x"], "one", "")
    with raises(LeaseError):
        store.attach("one", lambda keys: tamis.hash_keys(keys, seed=1), b"1")
    assert store.get_many([1, 2]) == ["x", None]
    store.release("two")
    store.close()


CHECKS = (
    keys_and_values_come_back,
    long_keys_and_values_come_back,
    contents_are_complete,
    index_holds_the_hash_of_every_key,
    another_seed_rebuilds_the_index,
    positions_name_states_of_the_set,
    a_snapshot_outlives_the_process,
    changes_come_in_pieces,
    one_writer_at_a_time,
    a_lease_expires,
)
