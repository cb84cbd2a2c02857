"""Metrics of Prometheus equal the statistics, and log lines of one kind are limited."""

import logging
import sys

import pytest
from failing import in_thread
from faulty import Faulty
from guards import absent_key, quotient

import tamis
from tamis.guard import protocol, statistics, sync

prometheus_client = pytest.importorskip("prometheus_client")


def guard(name, store=None):
    f = tamis.Quotient(capacity=1000, fpr=2**-4, seed=1)
    return tamis.Guard(store or tamis.stores.Memory(), f, name=name)


def scraped(registry):
    """The samples of a scrape, as Prometheus would parse them: values by name and guard."""
    from prometheus_client.parser import text_string_to_metric_families

    text = prometheus_client.generate_latest(registry).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_has_the_statistics_of_each_guard():
    one, two = guard("one"), guard("two")
    one.put_many((i, "x") for i in range(500))
    one.get_many(range(400, 3000))
    two.get("absent")
    one.rebuild()
    registry = prometheus_client.CollectorRegistry()
    registry.register(tamis.metrics.Collector(one, two))
    samples = scraped(registry)
    for g in (one, two):
        s = g.stats
        assert {
            name: value for (name, of, *more), value in samples.items() if of == g.name and not more
        } == {
            "tamis_guard_queries_total": s.queries,
            "tamis_guard_reads_saved_total": s.reads_saved,
            "tamis_guard_reads_wasted_total": s.wasted_reads,
            "tamis_guard_reads_found_total": s.true_positives,
            "tamis_guard_change_checks_total": s.change_checks,
            "tamis_guard_adaptations_total": s.adaptations,
            "tamis_guard_adaptations_skipped_total": s.adaptations_skipped,
            "tamis_guard_adaptations_deferred_total": s.adaptations_deferred,
            "tamis_guard_audits_total": s.audits,
            "tamis_guard_audit_failures_total": s.audit_failures,
            "tamis_guard_rebuilds_total": s.rebuilds,
            "tamis_guard_rebuild_seconds_total": s.rebuild_seconds,
            "tamis_guard_observed_fpr": s.observed_fpr,
            "tamis_guard_expected_fpr": s.expected_fpr,
            "tamis_guard_trusted": 1.0,
            "tamis_guard_memory_bytes": s.memory,
            "tamis_guard_lease_held": 1.0,
            "tamis_guard_staleness_seconds": 0.0,
            "tamis_guard_behind": 0.0,
            "tamis_guard_unsettled_keys": 0.0,
        }
    assert samples["tamis_guard_reads_wasted_total", "one"] > 0
    assert samples["tamis_guard_rebuild_seconds_total", "one"] > 0
    assert samples["tamis_guard_memory_bytes", "one"] == -(-one.filter.size_in_bits // 8)
    one.driver.distrust("of a test")
    one.close()
    assert {name for _, name, *_ in scraped(registry)} == {"two"}
    two.close()


def test_a_filter_that_is_not_in_use_shows():
    g = guard("g", tamis.stores.Memory())
    registry = prometheus_client.CollectorRegistry()
    registry.register(tamis.metrics.Collector(g))
    g.driver.tasks["rebuild"].close()
    g.driver.distrust("of a test")
    assert scraped(registry)["tamis_guard_trusted", "g"] == 0.0
    g.close()


def test_names_must_differ():
    one, two = guard("g"), guard("g")
    collector = tamis.metrics.Collector(one)
    collector.add(one)
    with pytest.raises(ValueError, match="different names, not 'g' twice"):
        collector.add(two)
    one.close()
    collector.add(two)
    two.close()
    with pytest.raises(ValueError, match="name must be a non-empty string, not ''"):
        guard("")


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install tamis\[prometheus\]"):
        tamis.metrics.Collector()


def test_lines_of_one_kind_are_limited(caplog, monkeypatch):
    at = [100.0]
    monkeypatch.setattr(statistics, "now", lambda: at[0])
    one, two = statistics.Log("one"), statistics.Log("two")
    with caplog.at_level(logging.INFO, logger="tamis.guard"):
        for i in range(5):
            one.warning("failed: %s", i)
        one.info("another kind")
        two.warning("failed: %s", "too")
        at[0] += 10
        one.warning("failed: %s", 5)
        one.warning("failed: %s", 6)
        at[0] += 60
        one.warning("failed: %s", 7)
        one.info("another kind")
    assert [record.getMessage() for record in caplog.records] == [
        "one: failed: 0",
        "one: another kind",
        "two: failed: too",
        "one: failed: 5 (4 such lines were left out before)",
        "one: failed: 7 (1 such lines were left out before)",
        "one: another kind",
    ]
    assert {record.levelno for record in caplog.records} == {logging.INFO, logging.WARNING}
    assert {record.funcName for record in caplog.records} == {"test_lines_of_one_kind_are_limited"}


def test_a_guard_that_is_distrusted_again_and_again_logs_once(caplog):
    with guard("noisy") as g, caplog.at_level(logging.WARNING, logger="tamis.guard"):
        for _ in range(50):
            g.driver.distrust("of a test")
            g.driver.rebuild()
    assert caplog.text.count("noisy: all queries go to the store") == 1


def test_why_queries_were_passed_and_what_failed():
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient(5000), name="g", on_failure="pass")
    registry = prometheus_client.CollectorRegistry()
    registry.register(tamis.metrics.Collector(g))
    g.put_many((i, "x") for i in range(100))
    absent = absent_key(g)

    def scraped_one(name, label):
        return scraped(registry)[f"tamis_guard_{name}_total", "g", label]

    assert {scraped_one("passed", reason) for reason in statistics.REASONS} == {0}
    assert {scraped_one("errors", kind) for kind in statistics.FAILURES} == {0}
    for i in range(protocol.PIECE + 1):
        store.write({b"%d" % i: "y"})
    g.driver.tasks["follow"].close()
    assert g.get(absent) is None
    assert scraped(registry)["tamis_guard_behind", "g"] == 1
    g.driver.follow()
    absent = absent_key(g)
    assert scraped_one("passed", "behind") == 1
    g.driver.tasks["rebuild"].close()
    g.driver.distrust("of a test")
    assert g.get_many([absent, 1]) == [None, "x"]
    assert scraped_one("passed", "rebuilding") == 2
    g.rebuild()
    changes, store.changes = store.changes, missing
    assert g.get(absent) is None
    assert (scraped_one("passed", "failed"), scraped_one("errors", "check")) == (1, 1)
    store.changes = changes
    with g.driver.replica.regions.locked([0]):  # as by another thread's write
        store.write({b"new": "y"})
        assert in_thread(g.get, absent) is None
    assert scraped_one("passed", "busy") == 1
    assert g.stats.passed == sum(g.stats.passed_because.values()) == 5
    store.breaks = "before"
    with pytest.raises(tamis.StoreError):
        g.put(1, "z")
    store.down = True
    with pytest.raises(tamis.StoreError):
        g.get(1)
    assert (scraped_one("errors", "write"), scraped_one("errors", "read")) == (1, 1)
    g.driver.tasks["audit"].start()
    g.driver.tasks["audit"].thread.join()
    assert scraped_one("errors", "audit") == 1
    store.down = False
    g.close()


def missing(*_):
    raise tamis.StoreError("the journal is missing")


def test_staleness_is_the_time_since_the_last_change_check(monkeypatch):
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient())
    g.get(absent_key(g))
    checked = g.driver.protocol._level_at
    monkeypatch.setattr(sync, "now", lambda: checked + 7)
    assert g.stats.staleness == 7
    g.close()
    with tamis.Guard(Faulty(), quotient()) as alone:
        monkeypatch.setattr(sync, "now", lambda: alone.driver.protocol.lease_until - 1)
        assert (alone.stats.staleness, alone.stats.holds_lease) == (0, True)
        monkeypatch.setattr(sync, "now", lambda: alone.driver.protocol.lease_until + 1)
        assert alone.stats.staleness > 1
        assert not alone.stats.holds_lease
