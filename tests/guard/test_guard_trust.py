"""What a guard answers while others write, while writes fail, and while its store is down."""

import gc
import os
import sqlite3
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from failing import in_thread
from faulty import Faulty

import tamis
from tamis import _native, stores
from tamis.stores.contract import Changes


def quotient(capacity=200):
    return tamis.Quotient(capacity=capacity, fpr=2**-3)


def telescoping(capacity=200):
    return tamis.Telescoping(capacity=capacity, fpr=2**-3, seed=3)


def absent_key(g, start=10_000):
    """A key that the filter rejects."""
    return next(key for key in range(start, start + 10_000) if key not in g.filter)


def false_positive(g, start=10_000):
    return next(key for key in range(start, start + 10_000) if key in g.filter)


def until(done, seconds=30):
    """Wait for something that happens in the background."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


# The gate.


def test_a_gate_answers_until_its_deadline():
    f = tamis.Bloom.build(["a", "b"], fpr=0.001)
    gate = _native.Gate(f, f.seed)
    assert gate.filter is f
    assert gate.current_filter() is None
    assert not gate.lookup("a").accepted  # a closed gate does not ask the filter
    gate.open_until(_native.now() + 1000)
    assert gate.current_filter() is f
    assert gate.lookup("a").accepted
    assert gate.lookup("absent") is None
    assert gate.denied == 1
    for passed in (_native.now(), 0.0):
        gate.open_until(passed)
        assert gate.current_filter() is None
        assert gate.lookup("a").accepted
        lookup = gate.lookup("absent")
        assert not lookup.accepted
        assert not gate.accepts(lookup)
    assert gate.denied == 1
    assert lookup.hashes.tolist() == tamis.hash_keys(["absent"]).tolist()
    gate.open_until(_native.now() + 1000)
    other = tamis.Bloom.build(["absent"], fpr=0.001)
    gate.replace(other)
    assert gate.filter is other
    assert not gate.lookup("never").accepted  # closed, until somebody opens it again
    assert gate.accepts(lookup)
    gate.open_until(_native.now() + 1000)
    gate.close()
    assert not gate.lookup("never").accepted
    with pytest.raises(ValueError, match="another seed"):
        gate.replace(tamis.Bloom(capacity=10, fpr=0.1, seed=1))
    with pytest.raises(TypeError, match="key is"):
        gate.lookup(1.5)


def test_the_clock_of_gates_is_that_of_leases():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= _native.now() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_guard_with_the_lease_asks_its_store_nothing():
    store = Faulty()
    g = tamis.Guard(store, quotient(), lease=1000)
    g.put_many((i, "x") for i in range(50))
    key = absent_key(g)
    store.asked.clear()
    for _ in range(100):
        assert g.get(key) is None
    assert not +store.asked
    assert (g.stats.reads_saved, g.stats.queries, g.stats.change_checks) == (
        100,
        100,
        g._gate.change_checks,
    )
    # What was counted natively is in the history too.
    assert sum(window.negatives for window in g.history) == 100


# Reads, while writes wait.


@pytest.mark.parametrize("shared", [False, True])
def test_a_query_does_not_wait_for_a_write(shared):
    """A put may wait for its commit for as long as somebody else has a transaction open."""
    store = Faulty(shared)
    g = tamis.Guard(store, telescoping(), lease=1000)
    g.put_many((i, str(i)) for i in range(100))
    store.hold = threading.Event()
    putter = threading.Thread(target=g.put, args=(1000, "later"))
    putter.start()
    assert store.waiting.wait(20)
    try:
        assert in_thread(g.get, 5) == "5"
        assert in_thread(g.get, absent_key(g)) is None
        assert in_thread(g.get, false_positive(g, 20_000)) is None
        if shared:
            hold, store.hold = store.hold, None
            store.write([7000])  # somebody else's, which cannot be replayed now
            store.hold = hold
            assert in_thread(g.get, 7000) == b"theirs"
        assert in_thread(g.get_many, [5, 6, 30_000]) == ["5", "6", None]
        assert in_thread(g.get, 1000) is None
        # Half of the lease is over.
        g._trust.freshness.renew_at = 0.0
        g._gate.open_until(0.0)
        assert in_thread(g.get, 6) == "6"
        assert in_thread(g.get, absent_key(g)) is None
    finally:
        store.hold.set()
        putter.join()
    store.hold = None
    assert g.get(1000) == "later"


def test_a_backlog_is_followed_in_pieces_and_delays_no_query():
    store = Faulty(shared=True)
    g = tamis.Guard(store, tamis.Quotient(capacity=10_000, fpr=2**-6), lease=1000)
    for i in range(3000):
        store.write([i])
    assert g.get(2999) == b"theirs"
    assert g.get(5000) is None
    assert g.stats.passed >= 1
    until(lambda: len(g.filter) == 3000)
    assert store.asked["changes of"] <= 512
    until(lambda: g.get(absent_key(g)) is None and g.stats.reads_saved > 0)
    assert g.get_many(range(3000)) == [b"theirs"] * 3000
    assert g.stats.rebuilds == 1


def test_the_lease_opens_no_gate_to_a_filter_that_is_behind():
    """After others wrote more than one piece under a lease of theirs."""
    store = Faulty()
    g = tamis.Guard(store, tamis.Quotient(capacity=10_000, fpr=2**-6), lease=1000)
    g._trust._follows.close()
    store.release(g._trust.owner)
    g._trust.freshness.lease_until = 0.001  # long over
    for i in range(2000):
        store.write([i])
    for i in range(1999, 0, -100):
        assert g.get(i) == b"theirs"
    until(lambda: g.get(absent_key(g)) is None and g.stats.reads_saved > 0)
    assert g.get_many(range(2000)) == [b"theirs"] * 2000


def test_a_snapshot_counts_only_with_all_changes_since(tmp_path):
    """A store may say that there are more, as it would have to wait for a write to return them."""
    store, path = Faulty(), tmp_path / "snapshot"
    with tamis.Guard(store, quotient(), snapshot=path) as g:
        g.put(1, "x")
    store.write([2])
    answers = iter([lambda since, *_: Changes(since, [], [], True)])
    changes = store.changes
    store.changes = lambda *given: next(answers, changes)(*given)
    with tamis.Guard(store, quotient(), snapshot=path) as g:
        assert g.get_many([1, 2]) == ["x", b"theirs"]
        assert g.stats.rebuilds == 1


# max_staleness.


def test_a_filter_that_is_not_trusted_denies_nothing():
    """Not even within the time for which it would count otherwise."""
    store = Faulty(shared=True)
    with tamis.Guard(store, quotient(), max_staleness=1000) as g:
        key = absent_key(g)
        assert g.get(key) is None
        g._trust._rebuilds.close()
        store._journal.clear()
        store.write([key])
        g._trust.follow()
        assert g.get(key) == b"theirs"
        assert not g.stats.trusted


def test_max_staleness_is_a_duration():
    for given, says in (("soon", "not 'soon'"), (-1, "not -1"), (float("nan"), "not nan")):
        with pytest.raises(ValueError, match=f"max_staleness must be seconds.*{says}"):
            tamis.Guard(stores.Memory(), quotient(), max_staleness=given)
    with pytest.raises(ValueError, match="on_failure must be 'raise' or 'filter', not 'ignore'"):
        tamis.Guard(stores.Memory(), quotient(), on_failure="ignore")


def test_a_stale_no_costs_no_change_check():
    store = Faulty(shared=True)
    with tamis.Guard(store, quotient(), max_staleness=1000) as g:
        store.write(range(50))
        g._trust.follow()
        key = absent_key(g)
        g.get(key)
        before = store.asked["change_token"]
        for _ in range(200):
            assert g.get(key) is None
        assert store.asked["change_token"] <= before + 1  # of the follower
        assert g.get_many(range(50)) == [b"theirs"] * 50


def test_a_strict_no_costs_one_change_check():
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient())
    g.put(1, "x")
    key = absent_key(g)
    g.get(key)
    before, checks = store.asked.copy(), g.stats.change_checks
    for _ in range(20):
        assert g.get(key) is None
        assert g.get(1) == "x"  # a "yes" is confirmed by the read itself
    assert store.asked - before == {"change_token": 20, "get_many": 20, "epoch": 20}
    assert g.stats.change_checks == checks + 20
    # For this store, a change check reads the epoch.


def test_what_others_write_is_denied_at_most_for_max_staleness(monkeypatch):
    """With a follower that never runs, only the deadline ends the stale answers."""
    monkeypatch.setattr(tamis.guard.trust, "Follower", lambda *_: None)
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient(), max_staleness=0.2)
    key = absent_key(g)
    assert g.get(key) is None
    store.write([key])
    written = _native.now()
    while g.get(key) is None:
        assert _native.now() - written < 20
    # The answer that ended it began after the deadline; a query at that time is never denied.
    assert g.get(key) == b"theirs"
    for i in range(20_000, 20_010):
        g.get(i)
        store.write([i])
        time.sleep(0.2)
        assert g.get(i) == b"theirs"


def test_staleness_counts_from_before_the_change_check(monkeypatch):
    """The store may answer long after it read what it answers."""
    monkeypatch.setattr(tamis.guard.trust, "Follower", lambda *_: None)
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient(), max_staleness=0.1)
    key = absent_key(g)
    time.sleep(0.1)
    change_token = stores.Memory.change_token

    def slow():
        token = change_token(store)
        store.write([key])
        time.sleep(0.2)
        return token

    store.change_token = slow
    g.get(absent_key(g, key + 1))
    del store.change_token
    assert g.get(key) == b"theirs"


def test_the_follower_keeps_the_filter_level(tmp_path):
    path = tmp_path / "data.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)")
    store = stores.SQLite(path, table="t", key="k", value="v")
    with tamis.Guard(store, quotient(2000), max_staleness="20ms") as g:
        for i in range(1000):
            db.execute("INSERT INTO t VALUES (?, 'x')", (i,))
        until(lambda: len(g.filter) == 1000)
        db.execute("DELETE FROM t WHERE k < 500")
        until(lambda: len(g.filter) == 500)
        assert g.get_many(range(1000)) == [None] * 500 + ["x"] * 500
        follower = g._trust._follower
    assert not follower._thread.is_alive()
    db.close()


def test_the_follower_ends_with_its_guard():
    g = tamis.Guard(stores.Memory(), quotient(), max_staleness=0.01)
    thread = g._trust._follower._thread
    g.store._hasher = None  # the store knows the guard
    del g
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


# A store that is down.


def test_a_store_that_is_down_raises():
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient())
    g.put(1, "x")
    store.down = True
    for ask in (lambda: g.get(1), lambda: g.get(absent_key(g)), lambda: g.get_many([1, 2])):
        with pytest.raises(tamis.StoreError):
            ask()
    with pytest.raises(tamis.StoreError):
        g.put(2, "y")
    store.down = False
    assert g.get_many([1, 2]) == ["x", None]
    g.put(2, "y")
    assert g.get(2) == "y"
    assert g.stats.rebuilds == 1


@pytest.mark.parametrize("choice", ["raise", "filter"])
def test_a_guard_with_the_lease_answers_while_the_store_is_down(choice):
    store = Faulty()
    g = tamis.Guard(store, quotient(), lease=1000, on_failure=choice)
    g.put(1, "x")
    key = absent_key(g)
    store.down = True
    assert g.get(key) is None
    with pytest.raises(tamis.StoreError):
        g.get(1)
    # Half of the lease is over, and it cannot be renewed.
    with g._trust.freshness.lock:
        g._trust.freshness.renew_at = 0.0
        g._trust.freshness.set_deadline()
    if choice == "raise":
        with pytest.raises(tamis.StoreError):
            g.get(key)
    else:
        assert g.get(key) is None
        assert g.get_many([key, key]) == [None, None]
    # The lease is over: another guard may have written.
    until(lambda: not _alive(g._trust._renewals))
    g._trust.freshness.lease_until = 0.001
    with pytest.raises(tamis.StoreError):
        g.get(key)
    store.down = False
    assert g.get_many([1, key]) == ["x", None]


def _alive(task):
    return task.thread is not None and task.thread.is_alive()


@pytest.mark.parametrize("choice", ["raise", "filter"])
def test_within_max_staleness_the_filter_may_answer_for_a_store_that_is_down(choice, caplog):
    store = Faulty(shared=True)
    with tamis.Guard(store, quotient(), max_staleness=1000, on_failure=choice) as g:
        store.write([1])
        g._trust.follow()
        key = absent_key(g)
        assert g.get(key) is None
        store.down = True
        g._trust._follower._wake.set()
        if choice == "filter":
            until(lambda: "cannot be followed" in caplog.text)
            assert g.get(key) is None
        else:
            until(lambda: g._gate.current_filter() is None)
            with pytest.raises(tamis.StoreError):
                g.get(key)
        store.down = False
        assert g.get(1) == b"theirs"
        assert g.get(key) is None


def test_a_rebuild_of_a_store_that_is_down_is_logged_once(caplog, monkeypatch):
    monkeypatch.setattr(tamis.guard.background, "_FIRST_DELAY", 0.0)
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient())
    g._trust._rebuilds._delay = 0.0
    store._journal.clear()
    store.write([1])
    store.down = False
    contents, store.contents = store.contents, lambda: (_ for _ in ()).throw(tamis.StoreError("x"))
    for _ in range(5):
        assert g.get(1) == b"theirs"
        g._trust._rebuilding.join()
    assert caplog.text.count("could not rebuild its filter") == 1
    store.contents = contents
    g.rebuild()
    assert g.get(1) == b"theirs"
    assert g.stats.trusted


def test_a_rebuild_in_another_way_ends_the_delay():
    """The next rebuild in the background does not wait for earlier failures."""
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient())
    task = g._trust._rebuilds
    task._delay, task._after = 60.0, _native.now() + 60.0
    g.rebuild()
    assert task._delay == 1.0
    assert task._after <= _native.now() + 1.0


def test_a_rebuild_that_is_overtaken_delays_the_next_one():
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient())
    task, changes = g._trust._rebuilds, store.changes
    store.changes = lambda *_, **__: None
    delays = []
    for _ in range(3):
        task._after = 0.0
        task.start()
        task.thread.join()
        delays.append(task._delay)
    assert delays == [2.0, 4.0, 8.0]
    assert not g.stats.trusted
    store.changes, task._after = changes, 0.0
    task.start()
    task.thread.join()
    assert g.stats.trusted
    assert task._delay == 1.0


# Writes that fail.


@pytest.mark.parametrize("make", [quotient, telescoping])
@pytest.mark.parametrize("error", [OSError, tamis.LeaseError, TypeError, RuntimeError])
def test_failed_puts_leave_nothing_in_the_filter(make, error):
    store = stores.Memory()
    g = tamis.Guard(store, make(), lease=1000)
    g.put("there", "x")
    put_many = store.put_many

    def fails(*_):
        raise error("no")

    for _ in range(50):
        store.put_many = fails
        with pytest.raises(error):
            g.put("again", "y")
        store.put_many = put_many
    assert len(g.filter) == 1
    g.put("again", "y")
    assert len(g.filter) == 2
    assert g.get_many(["there", "again"]) == ["x", "y"]
    assert g.stats.rebuilds == 1


@pytest.mark.parametrize("make", [quotient, telescoping])
@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("breaks", ["before", "after"])
def test_a_put_with_an_unknown_outcome_is_settled_by_the_next_write(breaks, journal, make):
    store = Faulty()
    g = tamis.Guard(store, make(), lease=1000)
    g.put("there", "x")
    for _ in range(20):
        store.breaks = breaks
        with pytest.raises(tamis.StoreError):
            g.put("unknown", "y")
        assert len(g.filter) == 2  # kept, as the store may have it
        assert g.get("unknown") == ("y" if breaks == "after" else None)
        if not journal:
            del store._journal[:-1]
            store._journal[-1] = ("0.forgotten", [], [])
    g.put("there", "z")
    g.put("other", "z")
    assert g.get_many(["there", "unknown", "other"]) == [
        "z",
        "y" if breaks == "after" else None,
        "z",
    ]
    until(lambda: g.get("never") is None and g.stats.trusted)
    assert len(g.filter) == (3 if breaks == "after" else 2)
    assert g.delete("unknown") == (breaks == "after")
    assert len(g.filter) == 2


def test_a_put_that_arrives_late_is_refused():
    """Its key may have left the filter by then."""
    store = Faulty()
    g = tamis.Guard(store, telescoping(), lease=1000)
    g.put_many((i, "x") for i in range(50))
    store.breaks = "late"
    with pytest.raises(tamis.StoreError):
        g.put("late", "y")
    g.put("there", "x")
    assert len(g.filter) == 51
    assert store.arrive() == 1
    assert g.get_many(["late", "there"]) == [None, "x"]
    # The same with a rebuild in between.
    store.breaks = "late"
    with pytest.raises(tamis.StoreError):
        g.put("late", "y")
    g.rebuild()
    assert store.arrive() == 1
    assert g.get("late") is None
    assert g.get_many(range(50)) == ["x"] * 50


def test_a_rebuild_keeps_a_put_that_may_still_arrive():
    """Also one that failed after the rebuild had settled the others."""
    store = Faulty()
    g = tamis.Guard(store, telescoping(), lease=1000)
    g.put_many((i, "x") for i in range(50))
    settle = g._trust.settle

    def put():
        with pytest.raises(tamis.StoreError):
            g.put("late", "y")

    putter = threading.Thread(target=put)

    def overtaken():
        settle()
        if not putter.ident:
            store.breaks = "late"
            putter.start()
            putter.join(0.2)

    g._trust.settle = overtaken
    g.rebuild()
    putter.join()
    assert store.arrive() == 0
    assert g.get("late") == "y"


def test_growth_keeps_the_slot_of_a_put_that_may_still_arrive():
    store = Faulty()
    g = tamis.Guard(store, tamis.Telescoping(capacity=4, fpr=2**-8, seed=3), lease=1000)
    store.breaks = "late"
    with pytest.raises(tamis.StoreError):
        g.put("late", "y")
    g.filter.grow(g._trust.replica.remote)
    assert store.arrive() == 0
    assert g.get("late") == "y"


def test_a_delete_with_an_unknown_outcome_is_followed():
    for breaks in ("before", "after"):
        store = Faulty()
        g = tamis.Guard(store, telescoping(), lease=1000)
        g.put_many((i, "x") for i in range(50))
        store.breaks = breaks
        with pytest.raises(tamis.StoreError):
            g.delete_many(range(25))
        assert (
            g.get_many(range(50)) == ([None] * 25 if breaks == "after" else ["x"] * 25) + ["x"] * 25
        )
        g.put("next", "y")
        assert len(g.filter) == (26 if breaks == "after" else 51)


# Batches.


def test_a_batch_reads_and_learns_each_key_once():
    store = Faulty()
    g = tamis.Guard(store, telescoping(), lease=1000)
    g.put_many((f"k{i}", str(i)) for i in range(100))
    reads, get_many = [], stores.Memory.get_many
    store.get_many = lambda keys: reads.append(list(keys)) or get_many(store, keys)
    wrong = next(f"absent {i}" for i in range(10_000) if f"absent {i}" in g.filter)
    answers = g.get_many(["k1", b"k1", wrong, "k2", wrong, "k1", wrong])
    assert answers == ["1", "1", None, "2", None, "1", None]
    assert reads == [[b"k1", wrong.encode(), b"k2"]]
    s = g.stats
    assert (s.queries, s.true_positives, s.false_positives) == (7, 4, 3)
    assert (s.adaptations, s.adaptations_skipped) == (1, 0)
    # The same where the filter is not trusted.
    reads.clear()
    g._trust.freshness.trusted = False
    g._gate.close()
    g._trust._rebuilds._closed = True
    assert g.get_many(["k1", "k1", wrong]) == ["1", "1", None]
    assert reads == [[b"k1", wrong.encode()]]


def test_a_batch_is_removed_in_one_request():
    store = Faulty()
    g = tamis.Guard(store, telescoping(2000), lease=1000)
    g.put_many((i, "x") for i in range(1000))
    g.get_many(range(10_000, 30_000))  # it has adapted
    assert g.stats.adaptations > 100
    store.asked.clear()
    assert all(g.delete_many(range(200)))
    assert store.asked["run"] + store.asked["runs"] == 1
    assert len(g.filter) == 800
    assert g.get_many(range(200, 1000)) == ["x"] * 800


def test_a_batch_of_false_positives_reads_the_index_once():
    store = Faulty()
    g = tamis.Guard(store, telescoping(2000), lease=1000)
    g.put_many((i, "x") for i in range(1000))
    store.asked.clear()
    g.get_many(range(10_000, 11_000))
    assert g.stats.adaptations > 50
    assert store.asked["run"] + store.asked["runs"] <= 2


# Opening.


def test_the_seed_of_the_stores_index_is_taken(tmp_path):
    """Another hash would make the store write its index anew."""
    path, attached = tmp_path / "data.db", []

    def opened(f):
        store = stores.SQLite(path)
        reindex = store._reindex
        store._reindex = lambda *rest: attached.append(1) or reindex(*rest)
        return tamis.Guard(store, f)

    with opened(tamis.Telescoping(capacity=100, fpr=0.01)) as g:
        g.put_many((i, str(i)) for i in range(100))
        seed = g.filter.seed
    attached.clear()
    shape = tamis.Workload.zipf(exponent=1.2, universe=10_000)
    for f in (
        tamis.Telescoping(capacity=100, fpr=0.01),
        tamis.AdaptiveCuckoo(capacity=200, fpr=0.01),
        tamis.AdaptiveStacked(100, shape, bits_per_key=10),
    ):
        with opened(f) as g:
            assert g.filter.seed == seed
            assert g.get_many(range(120)) == [str(i) for i in range(100)] + [None] * 20
    assert not attached
    with opened(tamis.Telescoping(capacity=100, fpr=0.01, seed=5)) as g:
        assert g.filter.seed == 5  # one that was asked for
    assert attached
    with pytest.raises(ValueError, match="only an empty filter"):
        g.filter._reseeded(1)


def test_a_guard_chooses_a_filter():
    store = stores.Memory()
    with tamis.Guard(store) as g:
        assert isinstance(g.filter, tamis.Telescoping)
        assert "tamis.Telescoping for 1,000 keys (the store has 0) with 10 bits" in g.chosen
        g.put_many((i, str(i)) for i in range(5000))
        assert g.get_many(range(5000)) == [str(i) for i in range(5000)]
    with tamis.Guard(store, bits_per_key=16) as g:
        assert g.filter.capacity >= 5000
        assert 12 < g.filter.bits_per_key <= 16.5
        assert g.get_many([1, 5000]) == ["1", None]
    shape = tamis.Workload.zipf(exponent=1.2, universe=100_000)
    with tamis.Guard(store, workload=shape) as g:
        assert g.filter.inserts
        assert type(g.filter).__name__ in g.chosen
        assert g.get_many(range(5000)) == [str(i) for i in range(5000)]
    with tamis.Guard(store, quotient(6000)) as g:
        assert g.chosen is None
    with pytest.raises(ValueError, match="bits_per_key must be a number above 0, not -1"):
        tamis.Guard(store, bits_per_key=-1)
    with pytest.raises(ValueError, match="only without a filter"):
        tamis.Guard(store, quotient(), bits_per_key=10)


def test_what_is_not_a_store_is_told_what_to_pass():
    db = sqlite3.connect(":memory:")
    db.close()
    for given, says in (
        ({"a": "1"}, r"not a dict: put its items into the store with put_many"),
        (db, r"not a sqlite3\.Connection: pass tamis\.stores\.SQLite"),
        ("data.db", r"such as tamis\.stores\.SQLite\(path\), not a str"),
        (5, r"not a int"),
    ):
        with pytest.raises(TypeError, match=says):
            tamis.Guard(given)


# Forks.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_process_is_told_to_open_its_own_guard(tmp_path):
    """Also while threads of the parent hold the guard's locks."""
    with tamis.Guard(stores.SQLite(tmp_path / "a.db"), quotient(), max_staleness=0.01) as g:
        g.put(1, "x")
        with g._trust.replica.regions.locked(), g._trust.freshness.lock:
            child = os.fork()
            if child == 0:
                told = 0
                for use in (
                    lambda: g.get(1),
                    lambda: g.get_many([1]),
                    lambda: g.put(2, "y"),
                    lambda: g.delete(1),
                    g.rebuild,
                ):
                    try:
                        use()
                    except RuntimeError as error:
                        told += "open another one after the fork" in str(error)
                g.close()  # has no effect
                os._exit(0 if told == 5 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        g.put(2, "y")  # the lease is still there
        assert g.get_many([1, 2]) == ["x", "y"]


# Rebuilding while others write.


def test_a_rebuilt_filter_is_used_only_once_it_is_level():
    """Others write while the keys are read, and queries go on."""
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient(2000), max_staleness=1000)
    store.write(range(100))
    g._trust.follow()
    assert g.get_many(range(100)) == [b"theirs"] * 100
    contents, denied = stores.Memory.contents, []

    def slow():
        epoch, parts = contents(store)
        store.write([500])
        return epoch, parts

    store.contents = slow
    replace, gate, before = g._gate.replace, g._gate, g._trust.replica.epoch

    class Gate:
        def __getattr__(self, name):
            return getattr(gate, name)

        def replace(self, filter):
            assert g._trust.replica.epoch == before  # which the old filter matches
            denied.extend(key for key in [*range(100), 500] if key not in filter)
            replace(filter)

    g._trust.replica.gate = Gate()
    g.rebuild()
    g._trust.replica.gate = gate
    assert not denied
    assert g.get(500) == b"theirs"
    g.close()


def test_expected_rates_follow_every_change():
    """Exactly as if they were computed anew."""
    random = np.random.default_rng(5)
    for make in (tamis.Telescoping, tamis.Extending):
        f = make(capacity=64, fpr=2**-3, seed=1)
        stored = stores.Hashes(seed=1)
        keys = []
        for step in range(400):
            action = random.integers(4)
            if action == 0 or len(keys) < 20:
                key = int(random.integers(10**6))
                f.add(key, stored)
                stored.add(key)
                keys.append(key)
            elif action == 1:
                key = keys.pop(int(random.integers(len(keys))))
                stored.remove(key)
                f.remove(key, stored)
            else:
                asked = random.integers(10**6, 10**7, 20)
                f.adapt_many(asked[f.contains(asked)], stored)
            if step % 7 == 0:
                assert f.expected_fpr == tamis.from_bytes(f.to_bytes()).expected_fpr
        f.update(range(10**8, 10**8 + 40), stored)
        assert f.expected_fpr == tamis.from_bytes(f.to_bytes()).expected_fpr


def test_expected_rates_are_not_computed_all_the_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(
        tamis.guard.statistics, "time", SimpleNamespace(perf_counter=lambda: clock[0])
    )

    class Slow:
        computed = 0

        @property
        def expected_fpr(self):
            self.computed += 1
            clock[0] += 0.01
            return 0.5

    rate, slow = tamis.guard.statistics.ExpectedRate(), Slow()
    assert [rate.read(slow) for _ in range(50)] == [0.5] * 50
    clock[0] += 0.99
    assert (rate.read(slow), slow.computed) == (0.5, 1)
    clock[0] += 0.02  # now a hundred times as long as it took has passed
    assert (rate.read(slow), slow.computed) == (0.5, 2)
    assert rate.read(Slow()) == 0.5


def test_a_delete_after_others_reads_the_index(tmp_path):
    """What others deleted is removed by an index without the key, and may take the key's slot."""
    path = tmp_path / "data.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)")
        db.executemany("INSERT INTO t VALUES (?, 'x')", [(i,) for i in range(100)])
        store = stores.SQLite(path, table="t", key="k", value="v")
        with tamis.Guard(store, telescoping()) as g:
            removed, remove = [], g._trust.replica._remove

            def by_the_index(filter, keys, attached):
                if keys:
                    removed.append((keys, attached))
                return remove(filter, keys, attached)

            g._trust.replica._remove = by_the_index
            assert g.delete(1)
            assert removed == []
            db.execute("DELETE FROM t WHERE k = 2")
            assert g.delete(3)
            assert removed == [([2], True), ([3], True)]
            assert g.delete_many([4, 5]) == [True, True]
            assert len(removed) == 2
            assert g.get_many(range(6)) == ["x", *[None] * 5]
            assert len(g.filter) == 95


def test_a_replay_in_which_the_filter_grows_keeps_the_keys_of_both_types(tmp_path):
    """Integers are inserted before text, for which the filter then grows from the store's index."""

    def guard(capacity, **options):
        filter = tamis.Telescoping(capacity=capacity, fpr=2**-8, seed=1)
        return tamis.Guard(stores.SQLite(tmp_path / "x.db"), filter, **options)

    with guard(64, snapshot=tmp_path / "filter") as g:
        g.put("first", "x")
    keys = [*range(30), *(f"key {i}" for i in range(300))]
    with guard(4096) as g:
        g.put_many((key, "x") for key in keys)
    with guard(64, snapshot=tmp_path / "filter") as g:
        assert g.stats.rebuilds == 0
        assert g.get_many(["first", *keys]) == ["x"] * 331
        assert len(g.filter) == 331


def test_a_put_for_which_the_filter_grows_keeps_the_keys_of_both_types():
    keys = [*range(30), *(f"key {i}" for i in range(300))]
    with tamis.Guard(stores.Memory(), tamis.Telescoping(capacity=64, fpr=2**-8, seed=1)) as g:
        g.put_many((key, "x") for key in keys)
        assert g.get_many(keys) == ["x"] * 330
        assert len(g.filter) == 330


def test_a_store_that_comes_back_with_the_state_before_a_delete_is_not_denied():
    """As a Redis server does that lost its latest writes: its state is the one before them."""
    store = Faulty(shared=True)
    with tamis.Guard(store, quotient()) as g:
        g.put("a", "x")
        assert g.get("b") is None  # the guard knows the token of this state
        kept = {"_values": dict(store._values), "_hashes": list(store._hashes)}
        kept |= {"_epoch": store._epoch, "_journal": list(store._journal)}
        assert g.delete("a")
        vars(store).update(kept)
        assert g.get("a") == "x"


class Interrupt(BaseException):
    """Raised by a signal handler. (An event loop would end by KeyboardInterrupt.)"""


def cuckoo(capacity=200):
    return tamis.Cuckoo(capacity=capacity, fpr=2**-3)


@pytest.mark.parametrize("make", [quotient, telescoping, cuckoo])
@pytest.mark.parametrize("error", [Interrupt, tamis.StoreError, MemoryError])
def test_changes_that_were_applied_in_part_are_not_applied_again(make, error, monkeypatch):
    """A second removal would take the slot of another key."""
    store = Faulty(shared=True)
    g = tamis.Guard(store, make(), lease=1000)
    store.write(items=range(200))
    assert g.get_many(range(200)) == [b"theirs"] * 200
    store.write(removed=range(0, 200, 2))
    remove = g._trust.replica._remove

    def interrupted(*arguments):
        g._trust.replica._remove = remove  # only once
        remove(*arguments)
        raise error("now")

    monkeypatch.setattr(g._trust._rebuilds, "start", lambda: None)
    g._trust.replica._remove = interrupted
    with pytest.raises(error):
        g.get(absent_key(g))
    assert not g.stats.trusted
    for _ in range(2):
        assert g.get_many(range(200)) == [None, b"theirs"] * 100
        g.rebuild()
    assert len(g.filter) == 100


def test_a_static_filter_keeps_a_key_that_others_deleted_during_a_put():
    store = Faulty(shared=True)
    store.lease("x", 1)
    store.attach("x", lambda keys: tamis.hash_keys(keys), b"x")
    store.write(items=range(50))
    store.release("x")
    g = tamis.Guard(store, tamis.Fuse.build(range(50), fpr=2**-8), lease=1000)
    put_many = store.put_many

    def overtaken(*arguments):
        store.put_many = put_many
        store.write(removed=[7])
        return put_many(*arguments)

    store.put_many = overtaken
    g.put(7, "mine")
    assert g.stats.trusted
    assert g.get(7) == "mine"


def test_an_error_after_a_commit_does_not_say_that_nothing_was_written(monkeypatch):
    """Neither LeaseError nor ValueError, after which the keys leave the filter."""
    for error in (tamis.LeaseError, ValueError, TypeError):
        store = Faulty(shared=True)
        g = tamis.Guard(store, telescoping(), lease=1000)
        put_many, changes = store.put_many, store.changes

        def overtaken(*arguments, store=store, put_many=put_many):
            store.put_many = put_many
            store.write(items=[b"theirs"])
            return put_many(*arguments)

        def fails(*_, error=error):
            raise error("now")

        store.put_many, store.changes = overtaken, fails
        g.put("mine", "x")
        store.changes = changes
        assert g.get_many(["mine", "theirs"]) == ["x", b"theirs"]
        assert g.get("mine") == "x"


def test_a_lease_that_is_lost_after_a_commit_is_no_error_of_the_put(tmp_path):
    path = tmp_path / "data.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:
        store = stores.SQLite(path)
        g = tamis.Guard(store, telescoping(), lease=1000)
        append = store._tail.append

        def lost(*_):
            db.execute("UPDATE tamis_tamis_meta SET value = x'00' WHERE name = 'lease'")
            return False

        store._tail.append = lost
        g.put("a", "x")
        store._tail.append = append
        assert g.get("a") == "x"
        db.execute("DELETE FROM tamis_tamis_meta WHERE name = 'lease'")
        g.close()


def test_a_closed_guard_answers_nothing():
    store = stores.Memory()
    with tamis.Guard(store, quotient()) as g:
        g.put("there", "x")
    for call in (
        lambda: g.get("there"),
        lambda: g.get("absent"),
        lambda: g.get_many(["there"]),
        lambda: "there" in g,
        lambda: g.put("there", "y"),
        lambda: g.delete("there"),
    ):
        with pytest.raises(ValueError, match="the guard is closed"):
            call()
    assert store.get_many([b"there"]) == ["x"]
