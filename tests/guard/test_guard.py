"""A guard never denies a key that its store has, and counts what it does."""

import errno
import logging
import os
import sqlite3
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from stand_in import Prefixes, tiny

import tamis
from tamis import stores
from tamis.stores._sqlite_connections import Connections


def quotient():
    return tamis.Quotient(capacity=200, fpr=2**-3)


def telescoping():
    """Small enough to have to grow."""
    return tamis.Telescoping(capacity=4, fpr=2**-3, seed=3)


def adaptive_cuckoo():
    """It keeps the hashes of its keys itself and does not need the store's index."""
    return tamis.AdaptiveCuckoo(capacity=200, fpr=2**-3, seed=3)


def adaptive_stacked():
    """So coarse that it has many false positives, and so small that it soon grows."""
    return tiny("quotient", room=5, seed=3)


@pytest.fixture
def fresh_stand_in(monkeypatch):
    """Let guards rebuild the stand-in, as they rebuild a native filter from its empty bytes."""
    opened = tamis.guard.construction.from_bytes
    monkeypatch.setattr(
        tamis.guard.construction,
        "from_bytes",
        lambda data, key=None: (
            Prefixes() if data == Prefixes().to_bytes() else opened(data, key=key)
        ),
    )


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


def test_counts_what_it_saves():
    g = tamis.Guard(stores.Memory(), tamis.Bloom(capacity=1000, fpr=0.01))
    g.put_many((i, str(i)) for i in range(1000))
    assert g.get_many(range(1000)) == [str(i) for i in range(1000)]
    absent = g.get_many(np.arange(1000, 21_000))
    assert absent == [None] * 20_000
    s = g.stats
    assert s.queries == 21_000
    assert s.true_positives == 1000
    assert s.false_positives + s.reads_saved == s.negatives == 20_000
    assert s.interval[0] <= s.expected_fpr <= s.interval[1]
    assert s.interval[0] <= s.observed_fpr <= s.interval[1]
    assert (s.passed, s.adaptations, s.rebuilds) == (0, 0, 1)


def test_puts_and_deletes_as_a_dictionary_would():
    g = tamis.Guard(stores.Memory(), quotient())
    g.put("a", "1")
    g.put(b"a", b"2")  # the same key
    g.put(1, "one")
    assert g.get("a") == g.get(b"a") == b"2"
    assert g.get("1") is None
    assert len(g.filter) == 2
    assert sorted(map(str, g)) == ["1", "b'a'"]
    assert g.delete_many(["a", b"a", "b"]) == [True, False, False]
    assert g.delete(1)
    assert len(g.filter) == 0
    assert not g.delete(1)
    assert g.get_many([]) == g.delete_many([]) == []
    g.put_many({})


def test_bad_arguments_are_named():
    g = tamis.Guard(stores.Memory(), quotient())
    with pytest.raises(
        TypeError, match=r"value of key 'a' must be bytes or str, not 1 \(of type int\)"
    ):
        g.put("a", 1)
    for key in (1.5, True, None):
        with pytest.raises(TypeError):
            g.put(key, "x")
        with pytest.raises(TypeError):
            g.get(key)
    with pytest.raises(TypeError, match=r"store must be a store of tamis.stores, .* not a dict"):
        tamis.Guard({}, quotient())
    with pytest.raises(ValueError, match=r"lease must be .* not 0"):
        tamis.Guard(stores.Memory(), quotient(), lease=0)
    with pytest.raises(ValueError, match=r"adaptations_per_second must be .* not -1"):
        tamis.Guard(stores.Memory(), quotient(), adaptations_per_second=-1)
    with pytest.raises(ValueError, match="snapshot must be a path"):
        g.save()


def test_a_filter_that_is_full_refuses_and_nothing_is_written():
    g = tamis.Guard(stores.Memory(), tamis.Cuckoo(capacity=10, fpr=0.01))
    with pytest.raises(tamis.CapacityError):
        g.put_many((i, "x") for i in range(1000))
    assert g.store.get_many(range(1000)) == [None] * 1000
    # Also where keys of another type were inserted before.
    with pytest.raises(tamis.CapacityError):
        g.put_many([*((i, "x") for i in range(5)), *((str(i), "x") for i in range(1000))])
    assert len(g.filter) == 0


def test_a_static_filter_of_all_keys_is_checked():
    store = stores.Memory()
    with tamis.Guard(store, quotient()) as g:
        g.put_many((i, "x") for i in range(100))
    g = tamis.Guard(store, tamis.Ribbon.build(range(100), fpr=0.01))
    assert g.get(5) == "x"
    with pytest.raises(TypeError, match="a Ribbon filter does not support insertion"):
        g.put(100, "x")
    assert g.store.get_many([100]) == [None]
    g.put(5, "y")
    assert g.get(5) == "y"
    g.close()
    with pytest.raises(ValueError, match=r"filter must be empty .* denies"):
        tamis.Guard(store, tamis.Ribbon.build(range(50), fpr=0.01))
    tamis.Guard(store, quotient()).put(7, "z")  # the failed guard released its lease


def test_a_filter_that_is_refused_leaves_the_table_free(tmp_path):
    with closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
        db.execute("CREATE TABLE t (k TEXT PRIMARY KEY)")
        db.executemany("INSERT INTO t VALUES (?)", [(f"k{i}",) for i in range(50_000)])
    store = stores.SQLite(tmp_path / "a.db", table="t", key="k", value="k", timeout=0.1)
    with pytest.raises(ValueError, match=r"filter must be empty .* denies"):
        tamis.Guard(store, tamis.Ribbon.build(["other"], fpr=0.01))
    store.close()


def test_keyed_filters_find_their_key_in_the_store(tmp_path):
    key, path = bytes(range(16)), tmp_path / "filter"
    keyed = tamis.Quotient(capacity=100, fpr=0.01, key=key)
    store = stores.Memory()
    with tamis.Guard(store, keyed, key=key, snapshot=path) as g:
        g.put("a", "1")
    assert key not in path.read_bytes()
    g = tamis.Guard(store, tamis.Quotient(capacity=100, fpr=0.01, key=key), snapshot=path)
    assert g.stats.rebuilds == 0
    assert g.get("a") == "1"
    with pytest.raises(tamis.IncompatibleError):
        tamis.Guard(stores.Memory(), keyed, key=bytes(16))
    with pytest.raises(ValueError, match="key must be the filter's secret key, not None"):
        tamis.Guard(stores.Memory(), keyed)
    with pytest.raises(ValueError, match="key must be None"):
        tamis.Guard(stores.Memory(), quotient(), key=key)


# Adaptation.


def test_a_false_positive_is_fixed(fresh_stand_in):
    g = tamis.Guard(stores.Memory(), Prefixes())
    g.put_many((i, str(i)) for i in range(40))
    absent = range(1000, 1500)
    g.get_many(absent)
    first = g.stats
    assert first.false_positives > 100
    assert 0 < first.adaptations <= first.false_positives
    for _ in range(5):
        g.get_many(absent)
    last = g.stats.false_positives
    g.get_many(absent)
    assert g.stats.false_positives == last
    assert g.get_many(range(40)) == [str(i) for i in range(40)]
    # Keys can still be added and deleted.
    assert all(g.delete_many(range(0, 40, 2)))
    g.put_many((i, "again") for i in range(100, 140))
    assert g.get_many(range(1, 40, 2)) == [str(i) for i in range(1, 40, 2)]
    assert g.get_many(range(100, 140)) == ["again"] * 40


@pytest.mark.parametrize("kind", ["swapping", "cyclic", "cuckooing"])
@pytest.mark.parametrize("store", [stores.Memory, lambda: stores.SQLite(":memory:")])
def test_an_adaptive_cuckoo_filter_before_any_store(kind, store, tmp_path):
    def made():
        return tamis.AdaptiveCuckoo(capacity=500, fpr=2**-5, kind=kind, seed=5)

    path, store = tmp_path / "filter", store()
    g = tamis.Guard(store, made(), snapshot=path)
    g.put_many((i, str(i)) for i in range(400))
    absent = range(10_000, 14_000)
    for _ in range(4):
        g.get_many(absent)
    first, again = g.stats.adaptations, g.stats.false_positives
    assert first > 0
    g.get_many(absent)
    # Fewer than at first: most adaptations last.
    assert g.stats.false_positives - again < 0.5 * 4000 * g.filter.expected_fpr
    assert all(g.delete_many(range(0, 400, 2)))
    assert g.get_many(range(1, 400, 2)) == [str(i) for i in range(1, 400, 2)]
    assert len(g.filter) == 200
    g.save()
    store.release(g._trust.owner)
    g = tamis.Guard(store, made(), snapshot=path)
    assert g.stats.rebuilds == 0
    assert g.get_many(range(400)) == [str(i) if i % 2 else None for i in range(400)]
    with pytest.raises(tamis.CapacityError):
        g.put_many((i, "x") for i in range(1000, 3000))
    assert g.get(1) == "1"
    g.close()


def test_adaptations_are_limited(fresh_stand_in):
    g = tamis.Guard(stores.Memory(), Prefixes(), adaptations_per_second=5)
    g.put_many((i, str(i)) for i in range(40))
    g.get_many(range(1000, 1500))
    assert g.stats.adaptations <= 6
    assert g.stats.adaptations_skipped >= g.stats.false_positives - 6
    never = tamis.Guard(stores.Memory(), Prefixes(), adaptations_per_second=0)
    never.put_many((i, str(i)) for i in range(40))
    never.get_many(range(1000, 1500))
    assert never.stats.adaptations == 0


def test_a_put_that_overtakes_an_answer_stops_the_adaptation(fresh_stand_in):
    """The store has no value, then the key is put, then the filter would adapt to deny it."""
    store = stores.Memory()
    g = tamis.Guard(store, Prefixes())
    g.put_many((i, str(i)) for i in range(20))
    overtaken = next(i for i in range(100, 1000) if i in g.filter)
    get_many, adapted, adapt_many = store.get_many, [], g.filter.adapt_many
    g.filter.adapt_many = lambda keys, remote: adapted.extend(keys) or adapt_many(keys, remote)

    def slow(keys):
        values = get_many(keys)
        store.get_many = get_many
        g.put(overtaken, "now")
        return values

    store.get_many = slow
    assert g.get(overtaken) is None
    assert (adapted, g.stats.adaptations) == ([], 0)
    assert g.get(overtaken) == "now"
    wrong = next(i for i in range(100, 1000) if i != overtaken and i in g.filter)
    assert g.get_many([wrong]) == [None]
    assert adapted == [wrong]


def test_a_put_that_ends_after_an_answer_stops_the_adaptation(fresh_stand_in):
    """The same with a put that another thread had begun before the query."""
    store = stores.Memory()
    g = tamis.Guard(store, Prefixes())
    g.put_many((i, str(i)) for i in range(20))
    coming, told, adapt_many = 100, [], g.filter.adapt_many
    g.filter.adapt_many = lambda keys, remote: told.extend(keys) or adapt_many(keys, remote)
    put_many, get_many = store.put_many, store.get_many
    begun, answered = threading.Event(), threading.Event()

    def slow_put(*arguments):
        begun.set()
        answered.wait()
        return put_many(*arguments)

    def slow_answer(keys):
        values = get_many(keys)
        answered.set()
        putter.join()
        return values

    store.put_many = slow_put
    putter = threading.Thread(target=g.put, args=(coming, "now"), daemon=True)
    putter.start()
    begun.wait()
    store.get_many = slow_answer
    assert g.get(coming) is None
    assert (told, g.stats.adaptations) == ([], 0)
    assert g.get(coming) == "now"


def test_the_remote_lists_a_pending_put_once():
    """Otherwise its slot would be matched to another hash of the run."""
    store = stores.Memory()
    g = tamis.Guard(store, telescoping())
    g.put_many((i, "x") for i in range(20))
    coming, seen = tamis.hash_keys([20, 21], seed=3).tolist(), []
    put_many = store.put_many

    def count():
        run = g._trust.replica.remote.run(0, 2**64 - 1).tolist()
        scan = [row for part in g._trust.replica.remote.scan() for row in part.tolist()]
        assert len(run) == len(scan)
        seen.append([run.count(row) + scan.count(row) for row in coming])

    def commit(*arguments):
        count()
        committed = put_many(*arguments)
        count()
        return committed

    store.put_many = commit
    g.put_many({20: "y", 21: "z"})
    count()
    assert seen == [[2, 2]] * 3
    assert g.delete(20)
    count()
    assert seen[-1] == [0, 2]


def test_growth_keeps_the_slot_of_a_pending_put():
    store = stores.Memory()
    g = tamis.Guard(store, telescoping())
    regions = g._trust.replica.regions.of(tamis.hash_keys(range(200), seed=3))
    coming, others = 0, [key for key in range(200) if regions[key] != regions[0]]
    put_many, capacity = store.put_many, g.filter.capacity
    putter = threading.Thread(target=g.put_many, args=([(key, "x") for key in others],))

    def commit(keys, *arguments):
        if keys == [coming]:
            putter.start()
            while g.filter.capacity == capacity:
                time.sleep(0.001)
        return put_many(keys, *arguments)

    store.put_many = commit
    g.put(coming, "coming")
    putter.join()
    assert g.get(coming) == "coming"
    assert g.get_many(others) == ["x"] * len(others)
    assert len(g.filter) == 1 + len(others)


def test_reports_a_rate_above_the_expected_one(caplog):
    reported = []
    keys = np.arange(200)
    store = stores.Memory()
    with tamis.Guard(store, quotient()) as g:
        g.put_many((int(i), "x") for i in keys)
    f = tamis.Bloom.build(keys, fpr=0.01)
    wrong = [i for i in range(10_000, 200_000) if i in f]
    g = tamis.Guard(store, f, on_rate=reported.append)
    g.get_many(range(10_000, 30_000))
    assert not reported
    g.get_many(wrong)
    g.get_many(range(10_000, 30_000))
    assert len(reported) == 2  # and again when the rate is back to normal
    assert reported[0].observed_fpr > reported[0].expected_fpr
    g.close()
    quiet = tamis.Guard(store, tamis.Bloom.build(keys, fpr=0.01))
    with caplog.at_level(logging.WARNING, logger="tamis.guard"):
        quiet.get_many(range(10_000, 20_000))
        quiet.get_many(wrong)
    assert "false-positive rate is above the expected one" in caplog.text


def test_a_popular_false_positive_is_no_surprise():
    """One false positive that makes up half of the queries is within the interval."""
    f = tamis.Bloom.build(range(200), fpr=0.01)
    store = stores.Memory()
    with tamis.Guard(store, quotient()) as g:
        g.put_many((i, "x") for i in range(200))
    g = tamis.Guard(store, f)
    wrong = next(i for i in range(10_000, 200_000) if i in f)
    g.get_many(list(range(10_000, 15_000)) + [wrong] * 5000)
    s = g.stats
    assert s.observed_fpr > 0.4
    assert s.interval[0] <= s.expected_fpr


@pytest.mark.parametrize("kind", ["Memory", "SQLite", "RocksDB"])
def test_an_adaptive_stack_grows_from_the_store(kind, tmp_path):
    """The snapshot keeps the layers; after a crash only the first is left."""
    if kind == "RocksDB":
        pytest.importorskip("rocksdict")

    def opened():
        store = stores.Memory() if kind == "Memory" else getattr(stores, kind)(tmp_path / "data")
        # A filter learns nothing while the lease has lapsed, so the lease outlasts a slow machine.
        return tamis.Guard(store, adaptive_stacked(), snapshot=tmp_path / "filter", lease=60)

    queries = tamis.traces.zipf(3000, universe=1000, seed=1)
    g = opened()
    g.put_many((i, "x") for i in range(150))
    for start in range(0, len(queries), 50):
        assert g.get_many(queries[start : start + 50]) == [None] * 50
        g.put(200 + start, "y")
        assert g.delete(200 + start)
    assert len(g.filter.layers) >= 3
    assert g.stats.adaptations > 0
    assert g.stats.false_positives == g.filter.observed.false_positives
    assert g.get_many(range(150)) == ["x"] * 150
    if kind == "Memory":
        return
    grown = g.filter.to_bytes()
    g.close()
    with opened() as g:
        assert g.stats.rebuilds == 0
        assert g.filter.to_bytes() == grown
        g.put(1000, "z")
        g._trust.snapshot = None  # as if it had crashed here
    if kind == "RocksDB":  # which has no journal
        with opened() as g:
            assert g.stats.rebuilds == 1
            assert len(g.filter.layers) == 1
            assert g.get_many([5, 1000]) == ["x", "z"]


# Snapshots and epochs.


def test_a_snapshot_of_the_epoch_saves_the_rebuild(tmp_path):
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
        g._trust.snapshot = None  # as if it had crashed here
    with tamis.Guard(store, quotient(), snapshot=path) as g:
        assert g.stats.rebuilds == 1
        assert g.get_many([100, 101]) == ["y", "z"]


@pytest.mark.parametrize("fails", ["write", "fsync", "replace", "epoch"])
def test_a_guard_that_cannot_save_gives_its_lease_back(fails, tmp_path, monkeypatch):
    """A full disk, or a store that does not answer, must not keep others from writing."""
    store, path = stores.Memory(), tmp_path / "filter"
    store.shared = fails == "epoch"
    guard = tamis.Guard(store, quotient(), snapshot=path, lease=3600)
    guard.put(1, b"one")
    guard.save()
    before = path.read_bytes()
    guard.put(2, b"two")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if fails == "epoch":
            patch.setattr(store, "epoch", full)
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
            (leases.append(clock.now) if owner == one._trust.owner else None)
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
    two._trust._rebuilding.join()
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
                two._trust._rebuilding.join()
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


# An existing table, which others write to.


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "data.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE users (name TEXT PRIMARY KEY, born TEXT)")
    db.executemany("INSERT INTO users VALUES (?, ?)", [(f"u{i}", str(i)) for i in range(50)])
    yield path, db
    db.close()


@pytest.mark.parametrize(
    "make", [quotient, Prefixes, telescoping, adaptive_cuckoo, adaptive_stacked]
)
def test_guards_a_table_in_place(table, make, fresh_stand_in):
    path, db = table
    with tamis.Guard(stores.SQLite(path, table="users", key="name", value="born"), make()) as g:
        assert g.get_many([f"u{i}" for i in range(50)]) == [str(i) for i in range(50)]
        # Other programs insert, delete and rename.
        db.execute("INSERT INTO users VALUES ('ada', '1815')")
        db.execute("DELETE FROM users WHERE name = 'u0'")
        db.execute("UPDATE users SET name = 'renamed' WHERE name = 'u1'")
        db.execute("INSERT OR REPLACE INTO users VALUES ('u2', 'again')")
        assert g.get("ada") == "1815"
        assert g.get_many(["u0", "u1", "renamed", "u2"]) == [None, None, "1", "again"]
        assert g.get_many([f"absent {i}" for i in range(200)]) == [None] * 200
        g.put("grace", "1906")
        assert db.execute("SELECT born FROM users WHERE name = 'grace'").fetchone() == ("1906",)
        db.execute("DELETE FROM users")
        db.execute("INSERT INTO users VALUES ('last', 'one')")
        assert g.get_many(["last", "grace", "ada"]) == ["one", None, None]
        assert g.stats.rebuilds == 1
        assert g.stats.passed == 0
        assert len(g.store.run(0, 2**64 - 1)) == 1


def test_growth_while_others_write_leaves_no_extra_slots(table):
    """A key that is indexed but not inserted yet must not be matched to a slot of the filter."""
    path, db = table
    store = stores.SQLite(path, table="users", key="name", value="born")
    with tamis.Guard(store, telescoping()) as g:
        assert len(g.filter) == 50
        db.executemany("INSERT INTO users VALUES (?, 'x')", [(f"v{i}",) for i in range(150)])
        assert g.get_many([f"v{i}" for i in range(150)]) == ["x"] * 150
        assert len(g.filter) == 200
        assert g.get_many([f"u{i}" for i in range(50)]) == [str(i) for i in range(50)]


def test_a_snapshot_follows_the_journal(table, tmp_path):
    path, db = table

    def opened():
        store = stores.SQLite(path, table="users", key="name", value="born")
        return tamis.Guard(store, quotient(), snapshot=tmp_path / "filter")

    opened().close()
    db.execute("INSERT INTO users VALUES ('ada', '1815')")
    db.execute("DELETE FROM users WHERE name = 'u0'")
    with opened() as g:
        assert g.stats.rebuilds == 0
        assert len(g.filter) == 50
        assert g.get_many(["ada", "u0", "u1"]) == ["1815", None, "1"]
    # A journal that was trimmed, or has another history, does not cover the changes.
    db.execute("UPDATE tamis_users_journal SET token = token + 1")
    with opened() as g:
        assert g.stats.rebuilds == 1


def test_a_table_that_cannot_be_guarded_is_refused(tmp_path):
    path = tmp_path / "data.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE t (k TEXT, v TEXT, n REAL UNIQUE, i TEXT UNIQUE COLLATE NOCASE)")
    db.close()
    for arguments, says in (
        ({"table": "t"}, "pass all of table, key and value"),
        ({"table": "x", "key": "k", "value": "v"}, "must be a table of the database, not 'x'"),
        ({"table": "t", "key": "x", "value": "v"}, r"column of 't' \(k, v, n, i\), not 'x'"),
        ({"table": "t", "key": "k", "value": "v"}, "a unique index of its own"),
        ({"table": "t", "key": "n", "value": "v"}, "of type REAL"),
        ({"table": "t", "key": "i", "value": "v"}, "BINARY"),
    ):
        with pytest.raises(ValueError, match=says):
            stores.SQLite(path, **arguments)


def test_a_database_in_a_missing_folder_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"path must be in an existing folder, not .*nofolder"
    ):
        stores.SQLite(tmp_path / "nofolder" / "x.db")


def test_columns_of_integers_and_blobs(tmp_path):
    path = tmp_path / "data.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE n (k INTEGER PRIMARY KEY, v TEXT)")
    db.execute("CREATE TABLE b (k BLOB UNIQUE, v BLOB)")
    db.execute("INSERT INTO n VALUES (5, 'five'), (-1, NULL)")
    db.execute("INSERT INTO b VALUES (x'6161', 'a'), ('text', 'b'), (NULL, 'c'), (1.5, 'd')")
    with tamis.Guard(stores.SQLite(path, table="n", key="k", value="v"), quotient()) as g:
        assert g.get_many([5, -1, 6, "5", 2**64 - 1]) == ["five", "", None, None, None]
        with pytest.raises(TypeError, match="cannot hold the key"):
            g.put("five", "x")
        assert g.delete(5)
    with tamis.Guard(stores.SQLite(path, table="b", key="k", value="v"), quotient()) as g:
        assert g.get_many([b"aa", "aa", "text", b"\xff"]) == ["a", "a", "b", None]
        g.put("text", "new")
        assert g.delete_many(["text", "aa"]) == [True, True]
    assert db.execute("SELECT count(*) FROM b").fetchone() == (2,)
    db.close()


# Against a dictionary.


class AgainstADictionary(RuleBasedStateMachine):
    """Puts, deletes, queries, crashes and other writers, compared with a dictionary."""

    keys = st.integers(0, 12).map(lambda i: [f"key {i}", i][i % 2])

    @initialize(
        kind=st.sampled_from(["memory", "sqlite", "in place"]),
        make=st.sampled_from([quotient, Prefixes, telescoping, adaptive_cuckoo, adaptive_stacked]),
    )
    def begin(self, kind, make):
        self.make = make
        self.model = {}
        self.other = None
        if kind == "memory":
            self.store = stores.Memory()
        elif kind == "sqlite":
            self.store = stores.SQLite(":memory:")
        else:
            self.store = object.__new__(stores.SQLite)
            connect, made = Connections.connect, []

            def prepared(connections):
                db = connect(connections)
                db.execute("CREATE TABLE t (k TEXT UNIQUE, v BLOB)")
                made.append(db)
                return db

            Connections.connect = prepared
            try:
                self.store.__init__(":memory:", table="t", key="k", value="v")
            finally:
                Connections.connect = connect
            self.other = made[0]
        self.open()

    def open(self):
        opened = tamis.guard.construction.from_bytes
        tamis.guard.construction.from_bytes = lambda data, key=None: (
            Prefixes() if self.make is Prefixes else opened(data, key=key)
        )
        try:
            self.guard = tamis.Guard(self.store, self.make())
        finally:
            tamis.guard.construction.from_bytes = opened

    def fits(self, key):
        return self.other is None or isinstance(key, str)

    @rule(key=keys, value=st.sampled_from([b"x", "y"]))
    def put(self, key, value):
        if self.fits(key):
            self.guard.put(key, value)
            self.model[key] = value

    @rule(keys=st.lists(keys, max_size=5))
    def delete(self, keys):
        was = self.guard.delete_many(keys)
        assert was == [self.model.pop(key, None) is not None for key in keys]

    @rule(key=keys)
    def get(self, key):
        assert self.guard.get(key) == self.model.get(key)

    @rule(start=st.integers(0, 1000))
    def absent_queries(self, start):
        assert self.guard.get_many(range(start + 100, start + 120)) == [None] * 20

    @rule(key=keys)
    def put_that_fails(self, key):
        """The commit fails after the filter has the key, which leaves a false positive."""
        put_many = self.store.put_many

        def fails(*_):
            raise OSError

        self.store.put_many = fails
        with pytest.raises(OSError):  # noqa: PT011
            self.guard.put(key, "lost")
        self.store.put_many = put_many

    @rule(key=keys, added=st.booleans())
    def other_writes(self, key, added):
        if self.other and self.fits(key):
            if added:
                self.other.execute("INSERT OR REPLACE INTO t VALUES (?, 'z')", (key,))
                self.model[key] = "z"
            else:
                self.other.execute("DELETE FROM t WHERE k = ?", (key,))
                self.model.pop(key, None)

    @rule()
    def reopen(self):
        self.store.release(self.guard._trust.owner)
        self.open()

    def teardown(self):
        if hasattr(self, "guard"):
            self.guard.close()

    @invariant()
    def denies_no_key(self):
        if hasattr(self, "guard"):
            keys = list(self.model)
            assert self.guard.get_many(keys) == [self.model[key] for key in keys]


AgainstADictionary.TestCase.settings = settings(
    max_examples=settings.default.max_examples, stateful_step_count=25, deadline=None
)
TestAgainstADictionary = AgainstADictionary.TestCase


def test_a_key_is_found_as_soon_as_it_is_committed():
    """The filter has it before the store, so a stored key is never denied."""
    store = stores.Memory()
    g = tamis.Guard(store, quotient())
    put_many = store.put_many

    def commit(*arguments):
        committed = put_many(*arguments)
        assert g.get_many(range(50)) == ["x"] * 50
        return committed

    store.put_many = commit
    g.put_many((i, "x") for i in range(50))


NOT_KEYS = ["\ud800", bytearray(b"a"), 1.5, None, True, np.bool_(True), 2**64, -(2**63) - 1, (1,)]


@pytest.mark.parametrize("key", NOT_KEYS, ids=lambda key: type(key).__name__)
def test_what_is_not_a_key_is_refused_as_by_a_filter(key):
    g = tamis.Guard(stores.Memory(), quotient())
    with pytest.raises((TypeError, OverflowError)) as expected:
        key in g.filter  # noqa: B015
    for use in (lambda: g.get(key), lambda: g.put(key, "x"), lambda: g.delete(key)):
        with pytest.raises(expected.type) as raised:
            use()
        assert str(raised.value) == str(expected.value)
    with pytest.raises(expected.type) as expected:
        g.filter.contains([key])
    freshness = g._trust.freshness
    for freshness.trusted in (True, False):
        freshness.set_deadline()
        for use in (lambda: g.get_many([key]), lambda: g.delete_many([key])):
            with pytest.raises(expected.type) as raised:
                use()
            assert str(raised.value) == str(expected.value)


def test_all_ways_to_write_a_key_are_one_key():
    pyarrow = pytest.importorskip("pyarrow")

    class Text(str):
        __slots__ = ()

    g = tamis.Guard(stores.Memory(), quotient())
    for same in (["a", b"a", Text("a"), np.str_("a")], [5, np.int8(5), pyarrow.scalar(5)]):
        for key in same:
            g.put(key, "x")
            assert len(list(g)) == 1
            assert g.get_many(same[:2]) == ["x"] * 2
            assert all(g.get(other) == "x" for other in same)
            assert g.delete(same[-1])
    assert len(g.filter) == 0


@pytest.mark.parametrize("keys", ["abc", b"abc", 5])
def test_one_key_is_no_list_of_keys(keys):
    g = tamis.Guard(stores.Memory(), quotient())
    with pytest.raises(TypeError) as expected:
        g.filter.contains(keys)
    for use in (g.get_many, g.delete_many):
        with pytest.raises(TypeError) as raised:
            use(keys)
        assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("items", [5, ["a"], [("a",)], [("a", "b", "c")], [5]])
def test_items_are_pairs(items):
    g = tamis.Guard(stores.Memory(), quotient())
    with pytest.raises(TypeError, match="items must be a mapping of keys to values, or pairs"):
        g.put_many(items)
