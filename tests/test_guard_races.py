"""Races that the fault campaign found, made certain."""

import sqlite3

import pytest

import tamis
from tamis import stores

FILTERS = {
    "quotient": lambda: tamis.Quotient(capacity=200, fpr=2**-8),
    "cuckoo": lambda: tamis.Cuckoo(capacity=200, fpr=2**-8),
    "telescoping": lambda: tamis.Telescoping(capacity=200, fpr=2**-8, seed=3),
    "grown": lambda: tamis.Telescoping(capacity=8, fpr=2**-8, seed=3),
}


@pytest.mark.parametrize("filter", FILTERS)
def test_a_put_of_a_key_that_a_stranger_deletes_meanwhile(filter, tmp_path):
    """The guard sees the key, the stranger deletes it, the guard's put stores it again."""
    path = tmp_path / "data.db"
    stranger = sqlite3.connect(path, isolation_level=None)
    stranger.execute("CREATE TABLE items (name TEXT PRIMARY KEY, body TEXT)")
    stranger.executemany("INSERT INTO items VALUES (?, 'old')", [(f"k{i}",) for i in range(20)])
    store = stores.SQLite(path, table="items", key="name", value="body")
    put_many = store.put_many

    def put_after_a_delete(keys, values, owner):
        stranger.execute("DELETE FROM items WHERE name IN ('k1', 'k2', 'k7')")
        return put_many(keys, values, owner)

    with tamis.Guard(store, FILTERS[filter]()) as guard:
        store.put_many = put_after_a_delete
        guard.put_many({"k1": "new", "k2": "new", "k3": "new", "other": "new"})
        store.put_many = put_many
        assert guard.get_many(["k1", "k2", "k3", "other", "k4"]) == ["new"] * 4 + ["old"]
        assert guard.get("k7") is None
        assert guard.delete_many(["k1", "k3"]) == [True, True]
        assert guard.get_many(["k1", "k2", "k3"]) == [None, "new", None]
        assert guard.stats.trusted
        guard.put_many({f"k{i}": "new" for i in range(40)})
        assert guard.get_many([f"k{i}" for i in range(40)]) == ["new"] * 40
    stranger.close()
