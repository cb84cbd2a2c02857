"""Races that the fault campaign found, made certain."""

import asyncio
import signal
import sqlite3
import threading
import time
from contextlib import closing, contextmanager

import pytest
from faulty import Faulty
from guards import until

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

    def put_after_a_delete(*arguments):
        stranger.execute("DELETE FROM items WHERE name IN ('k1', 'k2', 'k7')")
        return put_many(*arguments)

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


@pytest.mark.parametrize("filter", ["quotient", "telescoping"])
@pytest.mark.parametrize("breaks", ["after", ""])
def test_writes_do_not_wait_for_each_other_after_a_lost_reply(breaks, filter):
    """The next commit has to look for changes, which takes all locks; others hold some of them."""
    store = Faulty()
    large = {"quotient": tamis.Quotient, "telescoping": tamis.Telescoping}[filter]
    guard = tamis.Guard(store, large(capacity=200_000, fpr=2**-8, seed=3))
    guard.put("told", "v")
    regions, keys = guard._replica.regions, [f"k{i}" for i in range(5)]
    lost, errors = keys[0], []

    def put(key):
        try:
            guard.put(key, "v")
        except tamis.StoreError as error:
            errors.append(error)

    def is_writing(key):
        with regions.locked(regions.of(guard._replica.hashes([key])), wait=False) as held:
            return not held

    store.hold, store.breaks = threading.Event(), breaks
    threads = [threading.Thread(target=put, args=(key,), daemon=True) for key in keys]
    threads[0].start()
    store.waiting.wait()
    for key, thread in zip(keys[1:], threads[1:], strict=True):
        thread.start()
        until(lambda key=key: is_writing(key))
    store.hold.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert len(errors) == (breaks != "")
    assert guard.get_many(keys) == ["v"] * 5
    assert guard.delete_many(keys) == [True] * 5
    assert guard.get_many([*keys, "told"]) == [None] * 5 + ["v"]
    guard.put(lost, "w")
    assert guard.get(lost) == "w"
    assert guard.stats.trusted
    assert not any(key in guard.filter for key in keys[1:])
    guard.close()


@contextmanager
def redis_with_a_clock(folder):
    """A Redis server without persistence, its wall clock, and a function that kills it."""
    pytest.importorskip("redis")
    library = scenes.compile_clock(folder)
    if library is None:
        pytest.skip("no C compiler")
    clock = Clock(folder / "clock", library)
    backend = backends.Redis(folder, clock.env, persistence="none")

    async def restart():
        await backend.server.end(signal.SIGKILL)
        await backend.server.start()

    asyncio.run(backend.server.start())
    try:
        yield f"redis://127.0.0.1:{backend.port}", clock, lambda: asyncio.run(restart())
    finally:
        backend.server.close()


def test_a_redis_server_whose_clock_went_back_grants_leases(tmp_path):
    """Its uptime is then negative, as it is counted by the wall clock."""
    with redis_with_a_clock(tmp_path) as (url, clock, _), closing(stores.Redis(url)) as store:
        clock.step(-3600)
        until = time.monotonic() + 30
        while not store.lease("one", 0.1):
            assert time.monotonic() < until
            time.sleep(0.02)


def test_a_restarted_redis_server_whose_clock_went_forward_grants_no_second_lease(tmp_path):
    with redis_with_a_clock(tmp_path) as (url, clock, restart):
        one, two = stores.Redis(url, grace=0), stores.Redis(url)
        assert one.lease("one", 3600)
        restart()
        clock.step(7200)  # by which the server would have run for two hours
        assert not two.lease("two", 3600)
        assert "no longer knows of" in two.lease_refusal
        with closing(stores.Redis(url)) as other:
            guard = tamis.Guard(other, tamis.Quotient(capacity=100, fpr=0.01), lease=3600)
            with pytest.raises(tamis.LeaseError, match="grants one 3600 s after the first attempt"):
                guard.put(1, "x")
        assert one.lease("one", 3600)  # its own, by its own clock
        assert not two.lease("two", 3600)
        assert "another guard holds" in two.lease_refusal
        one.close()
        two.close()
