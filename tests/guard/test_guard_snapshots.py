"""Snapshots and positions."""

import errno
import logging
import os
import threading
import time

import numpy as np
import pytest
from guard_filters import adaptive_cuckoo, adaptive_stacked, quotient, telescoping
from stand_in import Prefixes

import tamis
from tamis import stores


class Clock:
    """Time that passes when a test says so, for guards and stores alike."""

    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self, *_):
        return self.now

    def forward(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for name in ("clock_gettime", "monotonic", "time"):
        monkeypatch.setattr(time, name, clock)
    return clock


def test_a_snapshot_of_the_position_saves_the_rebuild(tmp_path):
    path = tmp_path / "filter"
    store = stores.Memory()
    with tamis.Guard(store, quotient(), snapshot=path) as g:
        g.put_many((i, "x") for i in range(100))
    with tamis.Guard(store, quotient(), snapshot=path) as g:
        assert g.stats.rebuilds == 0
        assert g.get_many(range(100)) == ["x"] * 100
        g.put(100, "y")
        g.save()
        g.put(101, "z")
        g.driver.snapshot = None  # as if it had crashed here
    with tamis.Guard(store, quotient(), snapshot=path) as g:
        assert g.stats.rebuilds == 1
        assert g.get_many([100, 101]) == ["y", "z"]


@pytest.mark.parametrize("fails", ["write", "fsync", "replace", "metadata"])
def test_a_guard_that_cannot_save_gives_its_lease_back(fails, tmp_path, monkeypatch):
    """A full disk, or a store that does not answer, must not keep others from writing."""
    store, path = stores.Memory(), tmp_path / "filter"
    store.shared = fails == "metadata"
    guard = tamis.Guard(store, quotient(), snapshot=path, lease=3600)
    guard.put(1, b"one")
    guard.save()
    before = path.read_bytes()
    guard.put(2, b"two")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if fails == "metadata":
            patch.setattr(store, "metadata", full)
        elif fails == "write":
            patch.setattr(tamis.Quotient, "to_bytes", full)
        else:
            patch.setattr(os, fails, full)
        with pytest.raises(OSError, match="No space left"):
            guard.close()
    assert [p.name for p in tmp_path.iterdir()] == ["filter"]
    assert path.read_bytes() == before
    assert store.lease("another", 3600)


@pytest.mark.parametrize("damage", ["cut", "flip the head", "flip the body", "another", "empty"])
def test_a_damaged_snapshot_is_not_trusted(tmp_path, damage, caplog):
    path = tmp_path / "filter"
    store = stores.Memory()
    with tamis.Guard(store, quotient(), snapshot=path) as g:
        g.put_many((i, "x") for i in range(100))
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[-1]
    elif damage == "empty":
        data.clear()
    elif damage == "another":
        with tamis.Guard(stores.Memory(), quotient(), snapshot=tmp_path / "other") as g:
            g.put(1, "x")
        data = bytearray((tmp_path / "other").read_bytes())
    else:
        data[40 if damage == "flip the head" else len(data) // 2] ^= 1
    path.write_bytes(data)
    with tamis.Guard(store, quotient(), snapshot=path) as g:
        assert g.stats.rebuilds == 1
        assert g.get_many(range(100)) == ["x"] * 100
    assert "snapshot" in caplog.text


def test_only_the_guard_with_the_lease_writes(clock):
    store = stores.Memory()
    one = tamis.Guard(store, quotient(), lease=10)
    two = tamis.Guard(store, quotient(), lease=10)
    one.put("a", "1")
    with pytest.raises(tamis.LeaseError, match="another guard holds"):
        two.put("b", "2")
    assert two.get("a") == "1"  # its filter is stale, and it notices
    assert two.stats.passed + two.stats.true_positives == 1
    clock.now += 11  # the lease of the first expires
    two.put("b", "2")
    with pytest.raises(tamis.LeaseError):
        one.put("c", "3")
    assert one.get("b") == "2"
    assert store.get_many([b"c"]) == [None]


def test_a_guard_that_takes_its_lease_again_takes_the_index_too(clock, tmp_path):
    """Another wrote meanwhile, with an index of its own hash: a filter that grew from that one
    would lose its keys."""

    def opened(seed):
        f = tamis.Telescoping(capacity=16, fpr=2**-3, seed=seed)
        return tamis.Guard(stores.SQLite(tmp_path / "data.db"), f, lease=10)

    with opened(1) as one, opened(2) as two:
        there, grown = {}, 0
        for step in range(12):
            writer = (one, two)[step % 2]
            capacity = writer.filter.capacity
            for key in range(30 * step, 30 * step + 30):
                writer.put(key, str(key))
                there[key] = str(key)
            assert writer.get_many(there) == list(there.values())
            assert writer.get_many(range(10_000, 10_200)) == [None] * 200
            assert writer.stats.trusted
            grown += writer.filter.capacity > capacity
            clock.forward(11)
        assert grown >= 3
        assert one.get_many(there) == two.get_many(there) == list(there.values())
        assert one.stats.rebuilds == two.stats.rebuilds == 1


@pytest.mark.parametrize("kind", ["Memory", "SQLite"])
@pytest.mark.parametrize("use", ["put", "delete", "get"])
def test_a_guard_in_use_keeps_its_lease(clock, tmp_path, kind, use):
    """It renews the lease before it ends, and not at every call."""
    memory = stores.Memory()

    def opened():
        store = memory if kind == "Memory" else stores.SQLite(tmp_path / "data.db")
        return tamis.Guard(store, quotient(), lease=10)

    with opened() as one, opened() as two:
        leases, lease = [], one.store.lease
        one.store.lease = lambda owner, seconds: (
            (leases.append(clock.now) if owner == one.driver.protocol.owner else None)
            or lease(owner, seconds)
        )
        work = {
            "put": lambda: one.put("a", "1"),
            "delete": lambda: one.delete("a"),
            "get": lambda: one.get("a"),
        }[use]
        for _ in range(20):
            for _ in range(10):
                work()
            clock.forward(4)
            with pytest.raises(tamis.LeaseError):
                two.put("b", "2")
        assert 5 <= len(leases) <= 20
        clock.forward(11)
        two.put("b", "2")
        with pytest.raises(tamis.LeaseError):
            one.put("c", "3")


def test_a_stale_filter_passes_everything_and_is_rebuilt():
    store = stores.Memory()
    one = tamis.Guard(store, quotient())
    two = tamis.Guard(store, quotient())
    one.put_many((i, "x") for i in range(50))
    assert two.get_many(range(50)) == ["x"] * 50
    assert two.stats.passed == 50
    two.driver.tasks["rebuild"].thread.join()
    assert two.stats.trusted
    assert two.get_many(range(50)) == ["x"] * 50
    assert two.stats.true_positives == 50


def test_a_rebuild_that_fails_is_tried_again_later_and_later(clock, caplog):
    """After one second, two, four and at last sixty; after a success, after one again."""
    store = stores.Memory()
    one, two = tamis.Guard(store, quotient(), lease=10**6), tamis.Guard(store, quotient())
    contents, tried, broken = store.contents, [], [True]

    def fails():
        tried.append(clock.now)
        if broken[0]:
            raise OSError("the store does not list its keys")
        return contents()

    store.contents = fails

    def asked(seconds):
        """Ask eight times a second, and return how long after each other rebuilds were tried."""
        tried.clear()
        for _ in range(8 * seconds):
            for _ in range(3):
                assert two.get_many(["a", "b"]) == ["1", None]
                two.driver.tasks["rebuild"].thread.join()
            clock.forward(0.125)
        return np.diff(tried).tolist()

    with caplog.at_level(logging.CRITICAL, logger="tamis.guard"):
        one.put("a", "1")
        assert asked(300) == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        assert not two.stats.trusted
        assert two.stats.passed == two.stats.queries
        broken[0] = False
        assert asked(60) == []
        assert two.stats.trusted
        assert two.stats.rebuilds == 2
        broken[0] = True
        one.put("c", "3")
        assert asked(12) == [1, 2, 4]


def test_many_threads_on_one_guard(fresh_stand_in):
    for make in (quotient, Prefixes, telescoping, adaptive_cuckoo, adaptive_stacked):
        g = tamis.Guard(stores.Memory(), make())
        failures = []

        def work(name, g=g, failures=failures):
            random = np.random.default_rng(name)
            mine = {}
            for step in range(150):
                key = int(name * 1000 + random.integers(20))
                action = random.integers(4)
                if action == 0:
                    g.put(key, str(step))
                    mine[key] = str(step)
                elif action == 1:
                    if g.delete(key) != (mine.pop(key, None) is not None):
                        failures.append(("delete", key))
                elif g.get(key) != mine.get(key):
                    failures.append(("get", key))
                g.get_many(random.integers(10_000, 10_200, 5).tolist())

        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert len(g.filter) == len(list(g))
