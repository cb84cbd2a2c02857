"""A guard never denies a key that its store has, and counts what it does."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from guard_filters import quotient

import tamis
from tamis import stores


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
