"""The index of SQL stores: what it has, and the rows of the journal that it does not have yet."""

import threading

import numpy as np
import pytest
from positions import position
from servers import postgres_url  # noqa: F401

import tamis
from tamis import stores
from tamis.stores import tail
from tamis.stores.tail import JournalRows, Tail


def hash_rows(keys):
    return tamis.hash_keys(keys, seed=1)


def rows(hashes):
    return sorted(map(tuple, np.asarray(hashes).tolist()))


def part(*changes, exact=False):
    """Rows of the journal, each a number, whether it is an addition, and a key."""
    numbers, added, keys = map(list, zip(*changes, strict=True))
    return JournalRows(numbers, added, keys, f"{numbers[-1]}.token", exact)


def test_a_view_adds_and_removes_each_hash_once():
    rng = np.random.default_rng(1)
    for _ in range(50):
        stored = {int(key) for key in rng.integers(0, 60, 20)}
        tail, number, state = Tail(5, hash_rows), 5, set(stored)
        for key in rng.integers(0, 60, 40).tolist():
            number += 1
            added = key not in state or rng.random() < 0.2  # by INSERT OR REPLACE, again
            assert tail.append(number - 1, part((number, added, key)))
            state.add(key) if added else state.remove(key)
            if rng.random() < 0.1:
                tail.within(0, 2**64 - 1)  # sums up
        for indexed in (stored, state):  # the index has none or all of it by now
            view = tail.within(0, 2**64 - 1)
            expected = rows(hash_rows(sorted(state)))
            assert rows(view.apply(hash_rows(sorted(indexed)))) == expected
            parts = np.array_split(hash_rows(sorted(indexed)), 3)
            assert rows(np.concatenate([*view.apply_to_parts(iter(parts))])) == expected
        lo, hi = sorted(rng.integers(0, 2**64, 2, dtype=np.uint64).tolist())
        within = [row for row in rows(hash_rows(sorted(stored))) if lo <= row[0] <= hi]
        some = tail.within(lo, hi).apply(np.array(within, dtype=np.uint64).reshape(-1, 2))
        assert rows(some) == [row for row in expected if lo <= row[0] <= hi]


def test_rows_are_listed_once_and_not_after_a_gap():
    tail = Tail(5, hash_rows)
    assert not tail.append(7, part((8, True, "c")))
    assert tail.append(5, part((6, True, "a"), (7, True, "b")))
    assert tail.append(5, part((6, True, "a"), (7, True, "b"), (8, True, "c")))
    assert len(tail) == 3
    tail.drop(7)
    assert tail.within(0, 2**64 - 1).added == rows(hash_rows(["c"]))
    tail.drop(10)  # others wrote the index
    assert tail.append(8, part((9, True, "d"), (11, True, "e")))
    assert tail.within(0, 2**64 - 1).added == rows(hash_rows(["e"]))


@pytest.fixture(params=["SQLite", "Postgres"])
def opened(request, tmp_path):
    if request.param == "SQLite":
        return lambda: stores.SQLite(tmp_path / "data.db")
    import psycopg

    url = request.getfixturevalue("postgres_url")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS tail CASCADE")
        db.execute("CREATE SCHEMA tail")
    return lambda: stores.Postgres(f"{url} options='-c search_path=tail'")


def index_of(store):
    with store._reading() as db:
        return db.execute(f"SELECT count(*) FROM {store._t_hash}").fetchone()[0]


def write_some(store, state, rng, count):
    for _ in range(count):
        keys = [int(key) for key in np.unique(rng.integers(0, 300, 7))]
        if rng.random() < 0.6:
            store.put_many(keys, ["x"] * len(keys), "one")
            state.update(keys)
        else:
            store.delete_many(keys, "one")
            state.difference_update(keys)


def attached(store):
    assert store.lease("one", 1000)
    store.attach("one", hash_rows, b"seed 1")
    return store


def test_the_index_follows_in_large_steps_and_after_a_crash(opened, monkeypatch):
    monkeypatch.setattr("tamis.stores.sqlite.store.MAX_TAIL", 40)
    monkeypatch.setattr("tamis.stores.postgres.store.MAX_TAIL", 40)
    rng, state, sizes = np.random.default_rng(3), set(), set()
    store = attached(opened())
    for _ in range(30):
        write_some(store, state, rng, 3)
        expected = rows(hash_rows(sorted(state)))
        assert rows(store.run(0, 2**64 - 1)) == expected
        assert rows(np.concatenate([*store.scan()])) == expected
        sizes.add(index_of(store))
    assert len(sizes) > 3  # it was written a few times
    assert len(sizes) < 25
    # Another store, as after a crash of this one.
    again = attached(opened())
    assert rows(again.run(0, 2**64 - 1)) == expected
    assert index_of(again) == len(expected)
    store.close()
    again.close()


def test_guards_grow_from_an_index_that_is_behind(opened):
    """A filter that grows from the store's hashes keeps the keys that the index does not have."""
    f = tamis.Telescoping(capacity=64, fpr=2**-6, seed=2)
    with tamis.Guard(opened(), f) as g:
        threads = [
            threading.Thread(target=lambda i=i: [g.put(1000 * i + j, "x") for j in range(100)])
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        keys = [1000 * i + j for i in range(4) for j in range(100)]
        assert g.filter.capacity > 64
        assert index_of(g.store) < 400
        assert g.get_many(keys) == ["x"] * 400
        assert g.delete_many(keys[::2]) == [True] * 200
        assert g.get_many(keys[1::2]) == ["x"] * 200
        assert len(g.filter) == 200
        assert all(g.delete(key) for key in keys[1::2])
        assert len(g.filter) == 0


def test_the_longest_tail_is_bounded():
    assert 1000 <= tail.MAX_TAIL <= stores.base.JOURNAL // 10


def test_a_batch_may_be_longer_than_the_journal(postgres_url, monkeypatch):  # noqa: F811
    import psycopg

    monkeypatch.setattr("tamis.stores.postgres.tables.JOURNAL", 300)
    monkeypatch.setattr("tamis.stores.postgres.tables.TRIM_EVERY", 100)
    monkeypatch.setattr("tamis.stores.postgres.store._MAX_BATCH", 150)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS tail CASCADE")
        db.execute("CREATE SCHEMA tail")
    store = attached(stores.Postgres(f"{postgres_url} options='-c search_path=tail'"))
    keys = list(range(1000))
    values = ["x" if key % 2 else b"x" for key in keys]
    before = position(store)
    commit = store.put_many(keys, values, "one", before)
    assert commit.existed == [False] * 1000
    assert position(store) == commit.changes.position
    assert store.changes(before) is None  # the journal does not reach back so far
    assert rows(store.run(0, 2**64 - 1)) == rows(hash_rows(keys))
    store._write_index("one")
    assert index_of(store) == 1000
    assert store.delete_many([*keys, 1000], "one").existed == [*[True] * 1000, False]
    assert len(store.run(0, 2**64 - 1)) == 0
    store.close()
