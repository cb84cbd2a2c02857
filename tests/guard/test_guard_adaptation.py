"""Filters that learn from the false positives of a guard."""

import logging
import threading
import time

import numpy as np
import pytest
from guard_filters import adaptive_stacked, quotient, telescoping
from stand_in import Prefixes

import tamis
from tamis import stores
from tamis.guard import statistics, sync


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
    store.release(g.driver.protocol.owner)
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
        run = g.driver.replica.remote.run(0, 2**64 - 1).tolist()
        scan = [row for part in g.driver.replica.remote.scan() for row in part.tolist()]
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
    regions = g.driver.replica.regions.of(tamis.hash_keys(range(200), seed=3))
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
        g.driver.snapshot = None  # as if it had crashed here
    if kind == "RocksDB":  # which has no journal
        with opened() as g:
            assert g.stats.rebuilds == 1
            assert len(g.filter.layers) == 1
            assert g.get_many([5, 1000]) == ["x", "z"]


class Seconds:
    """A clock that only a store's requests advance."""

    def __init__(self, monkeypatch, store, read, adapt):
        """Let a read, and a look into the index of hashes, take so many seconds."""
        self.at = 0.0
        monkeypatch.setattr(sync.time, "perf_counter", lambda: self.at)
        for name, seconds in (("get_many", read), ("runs", adapt)):
            monkeypatch.setattr(store, name, self._taking(seconds, getattr(store, name)))

    def _taking(self, seconds, request):
        def request_and_wait(*arguments):
            self.at += seconds
            return request(*arguments)

        return request_and_wait


def false_positives(g, count):
    found = (i for i in range(10_000, 10**9) if i in g.filter)
    return [next(found) for _ in range(count)]


def test_a_false_positive_is_adapted_to_once_its_reads_have_cost_as_much(monkeypatch):
    store = stores.SQLite(":memory:")
    with tamis.Guard(store, tamis.Telescoping(capacity=1000, fpr=2**-5, seed=3), lease=3600) as g:
        g.put_many((i, "x") for i in range(500))
        first, *others = false_positives(g, 40)
        clock = Seconds(monkeypatch, store, read=1.0, adapt=5.0)
        g.get(first)  # what adapting costs is not known before
        assert (g.stats.adaptations, g.stats.adaptations_deferred) == (1, 0)
        before = clock.at
        for key in others:  # none of them returns
            g.get(key)
        assert (g.stats.adaptations, g.stats.adaptations_deferred) == (1, 39)
        assert clock.at - before == 39
        before = clock.at
        for _ in range(20):
            assert g.get(others[0]) is None
        # Five reads, of which one was before, then the adaptation.
        assert (clock.at - before, g.stats.adaptations) == (4 + 5, 2)
        assert g.get_many(others[1:]) == [None] * 38
        assert g.stats.adaptations_skipped == 0


def test_an_adaptation_that_is_cheaper_than_a_read_is_made_at_once(monkeypatch):
    store = stores.SQLite(":memory:")
    with tamis.Guard(store, tamis.Telescoping(capacity=1000, fpr=2**-5, seed=3), lease=3600) as g:
        g.put_many((i, "x") for i in range(500))
        Seconds(monkeypatch, store, read=2.0, adapt=1.0)
        for key in false_positives(g, 20):
            g.get(key)
        assert (g.stats.adaptations, g.stats.adaptations_deferred) == (20, 0)


def test_no_stream_makes_adaptations_cost_more_than_reads_or_a_key_return_for_ever():
    """With any number of false positives between those of one key, which returns."""
    rng = np.random.default_rng(7)
    rental, read, price = statistics.Rental(), 1.0, 20.0
    victim, reads, adaptations, waited, waits = 12345, 0, 0, 0, []
    for strangers in rng.integers(0, 3000, 2000).tolist():
        words = [*rng.integers(0, 2**63, strangers).tolist(), victim]
        due = rental.due(words, read, price)
        reads, adaptations, waited = reads + len(words), adaptations + len(due), waited + 1
        if strangers in due:
            waits.append(waited)
            waited = 0
    assert adaptations * price <= reads * read
    assert max(waits) <= 4 * price
    assert np.mean(waits) <= price


def test_a_stall_hardly_changes_an_average():
    average = statistics.Average()
    for _ in range(100):
        average.add(1.0)
    average.add(1000.0)
    assert average.value < 1.1
    average.add(200.0, 100)  # 2 seconds each, a hundred times
    assert 1.9 < average.value < 2.1
