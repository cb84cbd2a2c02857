"""Batches, opening, forks, and rebuilding while others write."""

import os
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from faulty import Faulty
from guards import absent_key, quotient, telescoping

import tamis
from tamis import stores
from tamis.guard.protocol import LeaseLost


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
    g.driver.tasks["rebuild"].close()
    g.driver.distrust("for a test")
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_process_is_told_to_open_its_own_guard(tmp_path):
    """Also while threads of the parent hold the guard's locks."""
    with tamis.Guard(stores.SQLite(tmp_path / "a.db"), quotient(), max_staleness=0.01) as g:
        g.put(1, "x")
        with g.driver.replica.regions.locked(), g.driver._lock:
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


def test_a_rebuilt_filter_is_used_only_once_it_is_level():
    """Others write while the keys are read, and queries go on."""
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient(2000), max_staleness=1000)
    store.write(range(100))
    g.driver.follow()
    assert g.get_many(range(100)) == [b"theirs"] * 100
    contents, denied = stores.Memory.contents, []

    def slow():
        position, parts = contents(store)
        store.write([500])
        return position, parts

    store.contents = slow
    replace, before = g.driver.replica.replace, g.driver.protocol.position

    def checked(filter):
        assert g.driver.protocol.position == before  # which the old filter matches
        denied.extend(key for key in [*range(100), 500] if key not in filter)
        replace(filter)

    g.driver.replica.replace = checked
    g.rebuild()
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
            removed, remove = [], g.driver.replica.remove

            def by_the_index(filter, keys, *, indexed):
                if keys:
                    removed.append((keys, indexed))
                return remove(filter, keys, indexed=indexed)

            g.driver.replica.remove = by_the_index
            assert g.delete(1)
            assert removed == []
            db.execute("DELETE FROM t WHERE k = 2")
            assert g.delete(3)
            g.driver.follow()
            assert [(sorted(keys), indexed) for keys, indexed in removed] == [([2, 3], True)]
            assert g.delete_many([4, 5]) == [True, True]
            assert len(removed) == 1
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


def test_a_filter_that_cannot_grow_before_it_is_rebuilt_refuses_no_put(monkeypatch):
    guard = tamis.Guard(Faulty(), telescoping(8))
    monkeypatch.setattr(guard.driver.tasks["rebuild"], "start", lambda: None)
    monkeypatch.setattr(guard.driver, "require_lease", lambda: None)
    guard.driver.handle(LeaseLost())  # and so the index
    keys = [f"k{i}" for i in range(300)]
    for key in keys:
        guard.put(key, "v")
    guard.rebuild()
    assert guard.stats.trusted
    assert guard.get_many([*keys, "absent"]) == ["v"] * 300 + [None]
    guard.close()


def test_a_store_that_comes_back_with_the_state_before_a_delete_is_not_denied():
    """As a Redis server does that lost its latest writes: its state is the one before them."""
    store = Faulty(shared=True)
    with tamis.Guard(store, quotient()) as g:
        g.put("a", "x")
        assert g.get("b") is None  # the guard knows the token of this state
        kept = {"_values": dict(store._values), "_hashes": list(store._hashes)}
        kept |= {"_version": store._version, "_journal": list(store._journal)}
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
    remove = g.driver.replica.remove

    def interrupted(*arguments, **options):
        g.driver.replica.remove = remove  # only once
        remove(*arguments, **options)
        raise error("now")

    monkeypatch.setattr(g.driver.tasks["rebuild"], "start", lambda: None)
    g.driver.replica.remove = interrupted
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
