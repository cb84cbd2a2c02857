"""What a guard answers from memory, and what it waits for."""

import gc
import logging
import sqlite3
import threading
import time

import pytest
from failing import in_thread
from faulty import Faulty
from guards import absent_key, quotient, set_lease, telescoping, until

import tamis
from tamis import _native, stores
from tamis.guard import statistics, sync
from tamis.stores.base import Changes


def false_positive(g, start=10_000):
    return next(key for key in range(start, start + 10_000) if key in g.filter)


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
        set_lease(g, renew_at=0.0)
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
    g.driver.tasks["follow"].close()
    store.release(g.driver.protocol.owner)
    set_lease(g, lease_until=0.001, renew_at=0.001)  # long over
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


def test_a_filter_that_is_not_trusted_denies_nothing():
    """Not even within the time for which it would count otherwise."""
    store = Faulty(shared=True)
    with tamis.Guard(store, quotient(), max_staleness=1000) as g:
        key = absent_key(g)
        assert g.get(key) is None
        g.driver.tasks["rebuild"].close()
        store._journal.clear()
        store.write([key])
        g.driver.follow()
        assert g.get(key) == b"theirs"
        assert not g.stats.trusted


def test_max_staleness_is_a_duration():
    for given, says in (("soon", "not 'soon'"), (-1, "not -1"), (float("nan"), "not nan")):
        with pytest.raises(ValueError, match=f"max_staleness must be seconds.*{says}"):
            tamis.Guard(stores.Memory(), quotient(), max_staleness=given)
    with pytest.raises(
        ValueError, match="on_failure must be 'raise', 'filter' or 'pass', not 'ignore'"
    ):
        tamis.Guard(stores.Memory(), quotient(), on_failure="ignore")


def test_a_stale_no_costs_no_change_check():
    store = Faulty(shared=True)
    with tamis.Guard(store, quotient(), max_staleness=1000) as g:
        store.write(range(50))
        g.driver.follow()
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
    assert store.asked - before == {"change_token": 20, "get_many": 20, "changes": 20}
    assert g.stats.change_checks == checks + 20


@pytest.mark.parametrize(("check", "read", "reported"), [(3.0, 2.0, True), (1.0, 2.0, False)])
def test_change_checks_that_cost_more_than_the_reads_they_save_are_reported_once(
    check, read, reported, monkeypatch, caplog
):
    store, at = Faulty(shared=True), [0.0]
    g = tamis.Guard(store, quotient())
    g.put_many((i, b"x") for i in range(100))
    monkeypatch.setattr(sync.time, "perf_counter", lambda: at[0])
    get_many, changes = store.get_many, store.changes

    def slow_get(keys):
        at[0] += read
        return get_many(keys)

    def slow_changes(since, limit=None):
        at[0] += check
        return changes(since, limit)

    monkeypatch.setattr(store, "get_many", slow_get)
    monkeypatch.setattr(store, "changes", slow_changes)
    monkeypatch.setattr(store, "change_token", lambda: None)
    monkeypatch.setattr(statistics, "_LOG_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING, logger="tamis.guard"):
        for i in range(3000):
            g.get(10_000 + i)
    lines = [line for line in caplog.messages if "does not pay" in line]
    assert len(lines) == reported
    if reported:
        assert "takes 3000000 µs" in lines[0]
        assert "save" in lines[0]
        assert 'max_staleness="100ms"' in lines[0]
    stale = tamis.Guard(Faulty(shared=True), quotient(), max_staleness="100ms")
    assert stale._payoff is None
    stale.close()
    g.close()


def test_what_others_write_is_denied_at_most_for_max_staleness(monkeypatch):
    """With a follower that never runs, only the deadline ends the stale answers."""
    monkeypatch.setattr(tamis.guard.driver, "Follower", lambda *_: None)
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
    monkeypatch.setattr(tamis.guard.driver, "Follower", lambda *_: None)
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
        follower = g.driver.follower
    assert not follower._thread.is_alive()
    db.close()


def test_the_follower_ends_with_its_guard():
    g = tamis.Guard(stores.Memory(), quotient(), max_staleness=0.01)
    thread = g.driver.follower._thread
    g.store._hasher = None  # the store knows the guard
    del g
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
