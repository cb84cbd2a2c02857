"""Journals that hold the keys of a commit together: of SQLite's own table, and of RocksDB."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from positions import position

import tamis
from tamis import stores
from tamis.stores.encoding import pack_keys, unpack_keys
from tamis.stores.sqlite import own_table
from tamis.stores.tail import JournalRows, net_changes


def hash_rows(keys):
    return tamis.hash_keys(keys, seed=1)


def rows(hashes):
    return sorted(map(tuple, np.asarray(hashes).tolist()))


def attached(store):
    assert store.lease("one", 1000)
    store.attach("one", hash_rows, b"seed 1")
    return store


def write_some(store, state, rng, count):
    """Write keys, some of which are there, and return what `changes` has to say of it."""
    before = set(state)
    for _ in range(count):
        keys = [int(key) for key in np.unique(rng.integers(0, 300, rng.integers(1, 12)))]
        there = [key in state for key in keys]
        if rng.random() < 0.6:
            assert store.put_many(keys, ["x"] * len(keys), "one").existed == there
            state.update(keys)
        else:
            assert store.delete_many(keys, "one").existed == there
            state.difference_update(keys)
    return sorted(state - before), sorted(before - state)


def test_packed_keys_are_checked():
    packed = pack_keys([b"bada", b"i7"])
    for wrong in (packed[:-1], packed + b"x"):
        with pytest.raises(ValueError, match="cut off, or followed"):
            unpack_keys(wrong)


def test_what_came_and_went_is_not_in_the_index():
    """Compared with a set, for journals that are exact and those that are not."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        indexed = {int(key) for key in rng.integers(0, 12, 6)}
        state, parts = set(indexed), []
        for number in range(0, 40, 4):
            exact = bool(rng.random() < 0.7)
            keys, signs = [], []
            for key in rng.permutation(12)[:4].tolist():
                # A row that is not exact may add a key that is there.
                added = key not in state or (not exact and rng.random() < 0.5)
                (state.add if added else state.discard)(key)
                keys.append(key)
                signs.append(added)
            parts.append(JournalRows(range(number, number + 4), signs, keys, "", exact))
        added, removed = net_changes(parts)
        assert (indexed - set(removed)) | set(added) == state
        if all(part.exact for part in parts):
            assert set(removed) <= indexed


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.db"


def journal_of(path):
    with closing(sqlite3.connect(path)) as db:
        return db.execute(
            "SELECT seq, added, key, keys FROM tamis_tamis_journal ORDER BY seq"
        ).fetchall()


def test_a_commit_is_one_row_whose_number_counts_its_keys(path):
    store = attached(stores.SQLite(path))
    before = position(store)
    store.put_many([1, 2, 3], ["x"] * 3, "one")
    store.put_many([4], ["x"], "one")
    store.put_many([4, 5, 1], ["y"] * 3, "one")  # one of them is new
    store.delete_many([7, 8], "one")
    store.delete_many([1, 9, 2], "one")
    (first, *_), *logged = journal_of(path)
    assert [(seq - first, added, key is None) for seq, added, key, _ in logged] == [
        (3, 1, True),
        (4, 1, False),
        (5, 1, False),
        (7, 0, True),
    ]
    assert store.get_many([1, 2, 3, 4, 5]) == [None, None, "x", "y", "y"]
    changes = store.changes(before)
    assert (changes.added, changes.removed) == ([3, 4, 5], [])
    store.close()


def test_a_limit_inside_a_row_returns_the_whole_row(path, monkeypatch):
    monkeypatch.setattr(own_table, "MAX_KEYS", 7)
    store = attached(stores.SQLite(path))
    since = position(store)
    store.put_many([*range(20)], ["x"] * 20, "one")  # in rows of 7, 7 and 6 keys
    store.delete_many([3], "one")
    sizes, added = [], []
    while True:
        changes = store.changes(since, limit=3)
        sizes.append(len(changes.added) + len(changes.removed))
        added += changes.added
        since = changes.position
        if not changes.more:
            break
    assert (sizes, added, changes.removed) == ([7, 7, 6, 1], [*range(20)], [3])
    assert since == position(store)
    assert store.changes(since) == (since, [], [], False)
    store.close()


def test_changes_are_those_of_a_set(path, monkeypatch):
    monkeypatch.setattr("tamis.stores.sqlite.store.MAX_TAIL", 30)
    monkeypatch.setattr(own_table, "MAX_KEYS", 4)
    rng, state = np.random.default_rng(2), set()
    store, reader = attached(stores.SQLite(path)), stores.SQLite(path)
    for _ in range(60):
        since = position(reader)
        expected = write_some(store, state, rng, 3)
        for each in (reader, store):
            changes = each.changes(since)
            assert (sorted(changes.added), sorted(changes.removed)) == expected
        assert rows(store.run(0, 2**64 - 1)) == rows(hash_rows(sorted(state)))
    # After a crash, a store finds in the journal what the index does not have.
    again = attached(stores.SQLite(path))
    assert rows(again.run(0, 2**64 - 1)) == rows(hash_rows(sorted(state)))
    for each in (store, reader, again):
        each.close()


def test_the_journal_is_trimmed_by_changes(path, monkeypatch):
    monkeypatch.setattr(own_table, "JOURNAL", 300)
    monkeypatch.setattr(own_table, "TRIM_EVERY", 100)
    store = attached(stores.SQLite(path))
    old = position(store)
    positions = [old]
    for start in range(0, 2000, 40):
        keys = [*range(start, start + 40)]
        commit = store.put_many(keys, ["x"] * 40, "one", positions[-1])
        assert commit.changes.added == keys
        positions.append(commit.changes.position)
    assert len(journal_of(path)) <= 12
    assert store.changes(old) is None
    assert len(store.changes(positions[-6]).added) == 200
    # More than the journal holds, in one commit.
    store.delete_many([*range(2000)], "one")
    assert store.changes(positions[-1]) is None
    assert len(store.run(0, 2**64 - 1)) == 0
    store.close()


def test_a_write_that_fails_in_the_middle_logs_nothing(path, monkeypatch):
    store = attached(stores.SQLite(path))
    store.put_many([1, 2, 3], ["x"] * 3, "one")
    before, logged = position(store), journal_of(path)
    monkeypatch.setattr(own_table, "pack_keys", lambda _: 1 / 0)
    for write in (
        lambda: store.put_many([3, 4, 5], ["y"] * 3, "one"),
        lambda: store.delete_many([1, 2, 9], "one"),
    ):
        with pytest.raises(ZeroDivisionError):
            write()
    assert store.get_many([1, 2, 3, 4, 5]) == ["x"] * 3 + [None] * 2
    assert (position(store), journal_of(path)) == (before, logged)
    monkeypatch.undo()
    store.put_many([4, 5], ["y"] * 2, "one")
    assert store.changes(before).added == [4, 5]
    assert rows(store.run(0, 2**64 - 1)) == rows(hash_rows([1, 2, 3, 4, 5]))
    store.close()


def test_triggers_of_others_that_replace_a_put_by_another_are_noticed(path):
    """SQLite counts as many changed rows as if both keys had been inserted."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")
        db.execute(
            "CREATE TRIGGER instead BEFORE INSERT ON t WHEN new.k = 'a' "
            "BEGIN INSERT INTO t VALUES ('z', 'theirs'); SELECT RAISE(IGNORE); END"
        )
    store = attached(stores.SQLite(path, table="t", key="k", value="v"))
    before = position(store)
    commit = store.put_many([b"a", b"b"], ["x", "x"], "one", before)
    assert commit == ([True, False], None)
    assert sorted(store.changes(before).added) == [b"b", b"z"]
    store.close()


# RocksDB.


@pytest.fixture
def folder(tmp_path):
    pytest.importorskip("rocksdict")
    return tmp_path / "rocks"


def index_of(store):
    return [key for key in store._db.keys(from_key=b"h") if key.startswith(b"h")]


def test_the_index_of_rocksdb_follows_in_large_steps_and_after_a_crash(folder, monkeypatch):
    monkeypatch.setattr("tamis.stores.rocksdb.index.MAX_TAIL", 40)
    rng, state, sizes = np.random.default_rng(3), set(), set()
    store = attached(stores.RocksDB(folder))
    for step in range(40):
        write_some(store, state, rng, 3)
        expected = rows(hash_rows(sorted(state)))
        assert rows(store.run(0, 2**64 - 1)) == expected
        assert rows(np.concatenate([*store.scan()])) == expected
        sizes.add(len(index_of(store)))
        if step % 10 == 9:
            store.close()  # which leaves the journal as a crash does
            store = attached(stores.RocksDB(folder))
            assert rows(store.run(0, 2**64 - 1)) == expected
            assert store.metadata("index") == b"seed 1"
    assert 3 < len(sizes) < 35
    # Another hash: the journal of the last one does not count any more.
    store.attach("one", lambda keys: tamis.hash_keys(keys, seed=2), b"seed 2")
    expected = rows(tamis.hash_keys(sorted(state), seed=2))
    assert rows(store.run(0, 2**64 - 1)) == expected
    assert len(index_of(store)) == len(expected)
    store.close()


class Failing:
    """A database whose writes are carried out, or not, and then raise an error."""

    def __init__(self, db, carried_out):
        self._db, self._carried_out = db, carried_out

    def write(self, *arguments):
        if self._carried_out:
            self._db.write(*arguments)
        raise OSError("the disk is gone")

    def __getattr__(self, name):
        return getattr(self._db, name)


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_write_with_an_unknown_outcome_is_found_in_the_journal(folder, carried_out):
    store = attached(stores.RocksDB(folder))
    store.put_many([1, 2, 3], ["x"] * 3, "one")
    db, store._db = store._db, Failing(store._db, carried_out)
    with pytest.raises(tamis.StoreError):
        store.put_many([3, 4, 5], ["x"] * 3, "one")
    stored = [1, 2, 3, 4, 5] if carried_out else [1, 2, 3]
    assert rows(store.run(0, 2**64 - 1)) == rows(hash_rows(stored))
    with pytest.raises(tamis.StoreError):
        store.delete_many([1], "one")
    store._db = db
    store.put_many([7], ["x"], "one")
    expected = [key for key in [*stored, 7] if key != 1 or not carried_out]
    assert rows(store.run(0, 2**64 - 1)) == rows(hash_rows(expected))
    store.close()
    store = attached(stores.RocksDB(folder))
    assert rows(store.run(0, 2**64 - 1)) == rows(hash_rows(expected))
    store.close()
