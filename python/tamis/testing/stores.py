"""The contract of a store: what a guard relies on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from tamis.errors import LeaseError
from tamis.testing.filters import raises

KEYS: Any = ["text", "é", "", b"\0\xff", 0, -1, 2**63, 2**64 - 1, -(2**63), "1", 1]
ALL = (0, 2**64 - 1)


@dataclass(frozen=True)
class StoreCase:
    """A function that opens the same store again, as another process would."""

    open: Callable[[], Any]
    exclusive: bool = False
    """Only one process can open the store at a time, so two guards cannot compete for it."""

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


def index_holds_the_hash_of_every_key(case: StoreCase) -> None:
    """The index of hashes equals the hashes of the stored keys, in every range."""
    with case.guard(seed=9) as g:
        g.put_many((i, "x") for i in range(6000))
        g.delete_many(range(1000))
        g.put_many((i, "y") for i in range(500, 2000))
        expected = _sorted(tamis.hash_keys(range(500, 6000), seed=9))
        assert (_sorted(np.concatenate(list(g.store.scan()))) == expected).all()
        words = expected[:, 0]
        ranges = [
            ALL,
            (0, 0),
            (2**63 - 10, 2**63 + 2**58),
            (int(words[3]), int(words[9])),
            (int(words[9]), int(words[9])),
            (2**64 - 2**57, 2**64 - 1),
        ]
        for (lo, hi), together in zip(ranges, g.store.runs(ranges), strict=True):
            run = g.store.run(lo, hi)
            assert run.dtype == np.uint64
            within = expected[(words >= np.uint64(lo)) & (words <= np.uint64(hi))]
            assert (_sorted(run) == within).all()
            assert (_sorted(together) == within).all()
        assert g.store.runs([]) == []


def another_seed_rebuilds_the_index(case: StoreCase) -> None:
    """For a guard with another seed, the store rebuilds the index with its hashes."""
    for seed in (1, 2):
        with case.guard(seed=seed) as g:
            g.put_many((i, "x") for i in range(50))
            expected = _sorted(tamis.hash_keys(range(50), seed=seed))
            assert (_sorted(g.store.run(*ALL)) == expected).all()


def epochs_name_states_of_the_set(case: StoreCase) -> None:
    """The epoch and the token change with the set of keys, and only then."""
    with case.guard() as g:
        writes: list[tuple[bool, Callable[[], Any]]] = [
            (True, lambda: g.put(1, "x")),
            (False, lambda: g.put(1, "y")),
            (True, lambda: g.put_many({1: "z", 2: "z"})),
            (True, lambda: g.delete(1)),
            (False, lambda: g.delete(1)),
            (True, lambda: g.put(1, "x")),
        ]
        epochs, tokens = [g.store.epoch()], [g.store.change_token()]
        for change, write in writes:
            write()
            epoch, token = g.store.epoch(), g.store.change_token()
            assert (epoch not in epochs) == change
            assert change or epoch == epochs[-1]
            assert not change or token not in tokens
            epochs.append(epoch)
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
    """A journal, where the store has one, gives the changes since an epoch, in order."""
    with case.guard() as g:
        since = g.store.epoch()
        for start in range(0, 10, 2):
            g.put_many((i, "x") for i in range(start, start + 2))
        g.delete_many([3, 4])
        added, removed = [], []
        while (changes := g.store.changes(since, limit=5)) is not None:
            added += changes.added
            removed += changes.removed
            since = changes.epoch
            if not changes.more:
                assert (sorted(added), sorted(removed)) == ([*range(10)], [3, 4])
                assert since == g.store.epoch()
                break


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
                two.store.put_many([b"b"], ["2"], "no owner")
            assert two.get_many(["a", "b"]) == ["1", None]
        two.put("b", "2")
        assert two.get_many(["a", "b"]) == ["1", "2"]


def a_write_before_attach_is_refused(case: StoreCase) -> None:
    """Without a hasher a write would leave the index behind."""
    store = case.open()
    assert store.lease("one", 60)
    with raises(LeaseError, match="call attach before the first write"):
        store.put_many([1], ["x"], "one")
    with raises(LeaseError, match="call attach before the first write"):
        store.delete_many([1], "one")
    assert store.get_many([1]) == [None]
    with raises(LeaseError):
        store.attach("two", lambda keys: tamis.hash_keys(keys, seed=1), b"1")
    store.release("one")
    store.close()


CHECKS = (
    keys_and_values_come_back,
    index_holds_the_hash_of_every_key,
    another_seed_rebuilds_the_index,
    epochs_name_states_of_the_set,
    a_snapshot_outlives_the_process,
    changes_come_in_pieces,
    one_writer_at_a_time,
    a_write_before_attach_is_refused,
)
