"""A guard in a service: answers without values, failures of its own, and audits."""

import logging

import numpy as np
import pytest
from faulty import Faulty
from guards import absent_key, quotient, telescoping, until

import tamis
from tamis import stores
from tamis.guard import driver, replica
from tamis.guard.replica import Regions, Remote


def filled(store=None, make=quotient, **options):
    g = tamis.Guard(Faulty() if store is None else store, make(), lease=1000, **options)
    g.put_many((i, str(i)) for i in range(100))
    return g


# Answers without values.


def test_maybe_is_the_answer_of_the_filter_without_a_read():
    g = filled()
    wrong = next(key for key in range(1000, 9000) if key in g.filter)
    absent = absent_key(g)
    g.store.asked.clear()
    assert [g.maybe(5), g.maybe(wrong), g.maybe(absent)] == [True, True, False]
    assert g.maybe_many([5, absent, wrong, "text"][:3]) == [True, False, True]
    assert g.maybe_many(np.array([5, absent])) == [True, False]
    assert g.maybe_many([]) == []
    assert not +g.store.asked
    s = g.stats
    assert (s.queries, s.reads_saved, s.accepted, s.false_positives) == (8, 3, 5, 0)
    with pytest.raises(TypeError):
        g.maybe(1.5)


def test_maybe_checks_for_changes_as_get_does():
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient())
    key = absent_key(g)
    assert not g.maybe(key)
    assert g.maybe_many([key]) == [False]
    other = absent_key(g, key + 1)
    store.write([key])
    assert g.maybe(key)
    store.write([other])
    assert g.maybe_many([other]) == [True]


def test_maybe_denies_nothing_without_trust():
    g = filled()
    g.driver.tasks["rebuild"].close()
    g.driver.distrust("for a test")
    assert g.maybe("absent")
    assert g.maybe_many(["absent", "other"]) == [True, True]
    assert g.stats.passed == 3


# Wasted reads.


def test_a_read_is_wasted_once():
    g = filled()
    wrong = next(key for key in range(1000, 9000) if key in g.filter)
    g.get_many([wrong] * 1000)
    assert (g.stats.false_positives, g.stats.wasted_reads) == (1000, 1)
    g.get(wrong)
    assert (g.stats.false_positives, g.stats.wasted_reads) == (1001, 2)


# Failures of what the guard has in the store.


class Broken(Faulty):
    """The values can be read, but what guards keep in the store cannot be used."""

    broken = False

    def __getattribute__(self, name):
        used = ("lease", "release", "changes", "change_token", "metadata", "attach", "sample")
        if name in used and object.__getattribute__(self, "broken"):
            return missing
        return super().__getattribute__(name)


def missing(*_):
    raise tamis.StoreError("no such table: tamis_journal")


@pytest.mark.parametrize("options", [{}, {"max_staleness": 1000}])
def test_a_guard_whose_tables_are_gone_passes_queries(options, caplog):
    store = Broken(shared=True)
    with tamis.Guard(store, quotient(), on_failure="pass", **options) as g:
        store.write(range(50))
        g.driver.follow()
        assert g.get(5) == b"theirs"
        store.broken = True
        if options:
            g.driver.follower.wake()
            until(lambda: "cannot be followed" in caplog.text)
        store.write([7000])
        assert g.get(7000) == b"theirs"
        assert g.get_many([5, 7000, absent_key(g)]) == [b"theirs", b"theirs", None]
        assert g.maybe(7000)
        assert "queries go to the store, as the guard does not work: no such table" in caplog.text
        with pytest.raises(tamis.StoreError):
            g.rebuild()
        store.down = True
        with pytest.raises(tamis.StoreError, match="the store is down"):
            g.get(7000)
        store.down = False
    assert g.closed  # also with the tables gone


def test_a_guard_opens_and_passes_where_it_may_not_write(tmp_path):
    store = Broken(shared=True)
    store.write(range(50))
    store.broken = True
    with pytest.raises(tamis.StoreError):
        tamis.Guard(store, quotient())
    with tamis.Guard(store, quotient(), on_failure="pass", snapshot=tmp_path / "filter") as g:
        assert g.get_many([5, 500]) == [b"theirs", None]
        assert not g.stats.trusted
        store.broken = False
        g.driver.tasks["rebuild"]._after = 0.0
        until(lambda: g.get(5) and g.get(500) is None and g.stats.trusted)


# The audit.


@pytest.mark.parametrize("make", [quotient, telescoping])
def test_an_audit_finds_a_denied_key(make, caplog):
    g = filled(make=make)
    g.driver.audit()
    assert (g.stats.audits, g.stats.audit_failures, g.stats.trusted) == (4, 0, True)
    g.driver.tasks["rebuild"].close()
    g.driver.replica.gate.filter.remove_many(range(100))  # as no guard would
    with caplog.at_level(logging.WARNING, logger="tamis.guard"):
        g.driver.audit()
    assert g.stats.audit_failures > 0
    assert not g.stats.trusted
    assert "an audit found that it denies" in caplog.text
    assert g.get_many(range(100)) == [str(i) for i in range(100)]
    g.rebuild()
    g.driver.audit()
    assert g.stats.trusted


def test_an_audit_takes_no_deleted_key_for_a_denied_one():
    store = Faulty(shared=True)
    with tamis.Guard(store, quotient()) as g:
        store.write(range(100))
        sample = store.sample

        def deleted_since(count):
            keys = sample(count)
            store.write(removed=keys)
            return keys

        store.sample = deleted_since
        for _ in range(10):
            g.driver.audit()
        assert (g.stats.audit_failures, g.stats.trusted) == (0, True)


@pytest.mark.parametrize("shared", [False, True])
def test_a_guard_in_use_audits_itself(shared, monkeypatch):
    monkeypatch.setattr(driver, "_AUDIT_INTERVAL", 0.0)
    g = filled(Faulty(shared=shared), max_staleness=0.02 if shared else 0)
    if not shared:
        vars(g.driver.protocol).update(renew_at=0.0)
        g.driver.handle(driver.p.StoreFailed())
    until(lambda: g.get(absent_key(g)) is None and g.stats.audits > 0)
    g.close()


def test_stores_without_random_draws_are_audited_by_their_first_keys():
    class Plain(stores.Memory):
        sample = stores.Store.sample

    g = tamis.Guard(Plain(), quotient())
    g.driver.audit()
    assert g.stats.audits == 0
    g.put_many((i, "x") for i in range(3))
    g.driver.audit()
    assert g.stats.audits == 3


# The filter's view of the store.


def test_runs_count_only_under_the_lease():
    store, held = stores.Memory(), [True]
    store.lease("one", 60)
    store.attach("one", lambda keys: tamis.hash_keys(keys, seed=1), b"1")
    store.put_many([1, 2], ["x", "y"], "one")
    remote = Remote(store, lambda: held[0])
    everything = 0, 2**64 - 1
    assert [len(run) for run in remote.runs([everything])] == [2]
    held[0] = False
    for read in (
        lambda: remote.runs([everything]),
        lambda: remote.run(*everything),
        lambda: list(remote.scan()),
    ):
        with pytest.raises(tamis.LeaseError, match="the lease expired"):
            read()


def test_a_run_may_begin_in_the_region_before_and_end_in_the_one_after():
    assert Regions.near([0]) == [0, 1]
    assert Regions.near([5, 9]) == [4, 5, 6, 8, 9, 10]
    assert Regions.near([63]) == [62, 63]
    large = tamis.Telescoping(capacity=100_000, fpr=2**-4, seed=1)
    assert replica.run_regions(large, [7]) == [6, 7, 8]
    assert replica.run_regions(telescoping(), [7]) is None
    assert replica.run_regions(quotient(100_000), [7]) is None


def test_a_snapshot_that_could_not_be_adopted_is_tried_again(tmp_path):
    """It is known only once it is in use."""
    store, paths = Faulty(), {"snapshot": tmp_path / "filter", "share": True}
    with (
        tamis.Guard(store, quotient(), lease=1000, **paths) as g,
        tamis.Guard(store, quotient(), read_only=True, **paths) as h,
    ):
        sharer = h.driver.sharer
        g.put_many((i, "x") for i in range(50))
        g.save()
        adopted, adopt = [], h.driver.adopt
        h.driver.adopt = lambda: adopted.append(1) and False
        sharer._known = None
        sharer.step(h.driver)
        h.driver.adopt = lambda: adopted.append(adopt()) or adopted[-1]
        sharer.step(h.driver)
        assert adopted == [1, True]
        sharer.step(h.driver)
        assert len(adopted) == 2  # known now
        assert h.get_many([5, 500]) == ["x", None]


def test_a_snapshot_is_of_no_use_without_its_position(tmp_path):
    """The store has changed since, and says what."""
    store, path = Faulty(), tmp_path / "filter"
    with tamis.Guard(store, quotient(), snapshot=path) as g:
        g.put_many((i, "x") for i in range(50))
    store.write([500], removed=[5])
    with tamis.Guard(store, quotient(), snapshot=path) as g:
        assert g.stats.rebuilds == 0
        assert g.get_many([4, 5, 500]) == ["x", None, b"theirs"]
        assert len(g.filter) == 50
    store.write([501])
    del store._journal[:-1]
    with tamis.Guard(store, quotient(), snapshot=path) as g:
        assert g.stats.rebuilds == 1
        assert g.get(501) == b"theirs"
