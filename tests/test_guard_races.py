"""Races that the fault campaign found, made certain."""

import asyncio
import sqlite3
import time
from contextlib import closing

import pytest

import tamis
from campaign import backends, scenes
from campaign.processes import Clock
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


def test_a_filter_does_not_grow_from_an_index_of_another_hash(tmp_path):
    """A guard that replays loses its lease, and another one indexes keys by its own hash."""
    path, snapshot = tmp_path / "data.db", tmp_path / "filter"

    def telescoping():
        return tamis.Telescoping(capacity=50, fpr=2**-8, seed=1)

    keys = [f"k{i}" for i in range(40)]
    with tamis.Guard(stores.SQLite(path), telescoping(), snapshot=snapshot) as guard:
        guard.put_many(dict.fromkeys(keys, "v"))
    with tamis.Guard(stores.SQLite(path), tamis.Quotient(capacity=500, fpr=2**-8, seed=2)) as other:
        for i in range(10):
            other.put_many({f"x{i} {j}": "v" for j in range(30)})
    store, others = stores.SQLite(path), []
    changes = store.changes

    def changes_after_the_lease(*arguments, **options):
        if not others:
            time.sleep(0.3)
            filter = tamis.Quotient(capacity=500, fpr=2**-8, seed=3)
            others.append(tamis.Guard(stores.SQLite(path), filter))
            others[0].put("more", "v")
        return changes(*arguments, **options)

    store.changes = changes_after_the_lease
    with tamis.Guard(store, telescoping(), snapshot=snapshot, lease=0.2) as guard:
        assert others
        assert guard.get_many([*keys, "x3 3", "more"]) == ["v"] * 42
    others[0].close()


def test_a_redis_server_whose_clock_went_back_grants_leases(tmp_path):
    """Its uptime is then negative, as it is counted by the wall clock."""
    pytest.importorskip("redis")
    library = scenes.compile_clock(tmp_path)
    if library is None:
        pytest.skip("no C compiler")
    clock = Clock(tmp_path / "clock", library)

    async def main():
        backend = backends.Redis(tmp_path, clock.env, persistence="none")
        await backend.start()
        try:
            clock.step(-3600)
            await asyncio.to_thread(take_lease, f"redis://127.0.0.1:{backend.port}")
        finally:
            await backend.close()

    def take_lease(url):
        with closing(stores.Redis(url)) as store:
            until = time.monotonic() + 30
            while not store.lease("one", 0.1):
                assert time.monotonic() < until
                time.sleep(0.02)

    asyncio.run(main())
