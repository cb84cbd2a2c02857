"""Tables of SQLite in which keys are easily missed: odd types, conflicts, encodings, collations."""

import sqlite3

import numpy as np
import pytest
from positions import position

from tamis import stores


@pytest.fixture
def connect(tmp_path):
    opened = []

    def connect(*statements):
        db = sqlite3.connect(tmp_path / "data.db", isolation_level=None)
        opened.append(db)
        for statement in statements:
            db.execute(statement)
        return db

    connect.path = tmp_path / "data.db"
    yield connect
    for db in opened:
        db.close()


def in_place(connect, **options):
    return stores.SQLite(connect.path, **{"table": "t", "key": "k", "value": "v", **options})


class Follower:
    """A multiset that follows a store, as a filter that counts does."""

    def __init__(self, store):
        self.store = store
        self.rebuild()

    def rebuild(self):
        self.since, parts = self.store.contents()
        self.held = dict.fromkeys((key for part in parts for key in part), 1)

    def look(self):
        changes = self.store.changes(self.since)
        for key in changes.added:
            self.held[key] = self.held.get(key, 0) + 1
        for key in changes.removed:
            # A filter that removes a key which it does not hold takes the slot of another.
            assert self.held.get(key, 0) > 0, f"{key!r} is removed but was never added"
            self.held[key] -= 1
        self.since = changes.position
        return {key for key, count in self.held.items() if count > 0}


def keys_of(store):
    return {key for part in store.contents()[1] for key in part}


def test_an_update_from_a_float_to_an_integer_adds_a_key(connect):
    db = connect("CREATE TABLE t (k PRIMARY KEY, v)", "INSERT INTO t VALUES (1.0, 'x')")
    follower = Follower(store := in_place(connect))
    assert follower.look() == set()
    db.execute("UPDATE t SET k = 1 WHERE k = 1.0")
    assert follower.look() == {1}
    db.execute("UPDATE t SET k = 1.0 WHERE k = 1")
    assert follower.look() == set()
    store.close()


def test_text_and_a_blob_of_equal_bytes_are_one_key_in_two_rows(connect):
    db = connect("CREATE TABLE t (k UNIQUE, v)", "INSERT INTO t VALUES ('a', 'x')")
    follower = Follower(store := in_place(connect))
    db.execute("INSERT INTO t VALUES (x'61', 'y')")
    assert follower.look() == {b"a"}
    db.execute("DELETE FROM t WHERE k = x'61'")
    assert follower.look() == {b"a"}
    db.execute("INSERT INTO t VALUES (x'61', 'y')")
    db.execute("DELETE FROM t WHERE k = 'a'")
    assert b"a" in follower.look()
    store.close()


def test_an_index_with_text_and_blobs_of_equal_bytes_ends(connect, monkeypatch):
    monkeypatch.setattr("tamis.stores.sqlite.store.BATCH", 1)
    connect("CREATE TABLE t (k UNIQUE, v)", "INSERT INTO t VALUES ('a', 'x'), (x'61', 'y')")
    store = in_place(connect)
    assert store.lease("one", 60)
    hashes = np.array([[7, 9]], dtype=np.uint64)
    store.attach("one", lambda keys: np.repeat(hashes, len(keys), axis=0), b"1")
    assert [part.tolist() for part in store.scan() if len(part)] == [[[7, 9]]]
    store.close()


def test_text_that_is_not_utf_8_disables_nothing(connect):
    db = connect(
        "CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)",
        "INSERT INTO t VALUES (CAST(x'ff' AS TEXT), 'x'), ('a', CAST(x'fe' AS TEXT))",
    )
    follower = Follower(store := in_place(connect))
    assert b"a" in follower.look()
    db.execute("INSERT INTO t VALUES (CAST(x'ff41' AS TEXT), 'y'), ('b', 'z')")
    assert follower.look() >= {b"a", b"b"}
    assert store.get_many([b"a", b"b"]) == [b"\xfe", "z"]
    store.close()


def test_columns_that_do_not_compare_by_bytes_are_refused(connect):
    connect(
        "CREATE TABLE t (k TEXT COLLATE NOCASE, v TEXT)",
        "CREATE UNIQUE INDEX binary ON t (k COLLATE BINARY)",
    )
    with pytest.raises(ValueError, match="'k': its collation in 't' is not BINARY"):
        in_place(connect)


def test_keys_of_several_columns_need_utf_8(connect):
    connect("PRAGMA encoding = 'UTF-16'", "CREATE TABLE t (k TEXT, n INT, v, PRIMARY KEY (k, n))")
    with pytest.raises(ValueError, match="has its text as UTF-16"):
        in_place(connect, key=["k", "n"])


def test_one_column_of_utf_16_is_followed(connect):
    db = connect("PRAGMA encoding = 'UTF-16'", "CREATE TABLE t (k TEXT PRIMARY KEY, v)")
    follower = Follower(store := in_place(connect))
    db.execute("INSERT INTO t VALUES ('é', 'x')")
    assert follower.look() == {"é".encode()}
    store.close()


def test_rows_that_a_conflict_replaces_never_hide_a_key(connect):
    """Keys vanish without a trigger, come back, and satisfy a condition or do not."""
    db = connect("CREATE TABLE t (id INTEGER PRIMARY KEY, k TEXT UNIQUE, v, gone INT)")
    rng = np.random.default_rng(8)
    store = in_place(connect, where="gone = 0")
    follower = Follower(store)
    statements = (
        "INSERT OR REPLACE INTO t VALUES (?1, ?2, 'x', ?3)",
        "INSERT OR IGNORE INTO t VALUES (?1, ?2, 'x', ?3)",
        "UPDATE OR REPLACE t SET k = ?2, gone = ?3 WHERE id = ?1",
        "UPDATE OR IGNORE t SET k = ?2, gone = ?3 WHERE id = ?1",
        "UPDATE OR REPLACE t SET id = ?1 WHERE k = ?2 AND ?3 = ?3",
        "DELETE FROM t WHERE (id = ?1 OR k = ?2) AND ?3 = ?3",
    )
    for step in range(600):
        statement = statements[rng.integers(len(statements))]
        db.execute(statement, (int(rng.integers(6)), f"key{rng.integers(6)}", int(rng.integers(2))))
        if rng.random() < 0.3:
            assert follower.look() >= keys_of(store), f"after {step} steps"
        if rng.random() < 0.1:
            follower.rebuild()
    store.close()


def test_a_condition_without_conflicts_is_followed_exactly(connect):
    db = connect("CREATE TABLE t (k TEXT PRIMARY KEY, v, gone INT)")
    store = in_place(connect, where="gone = 0")
    follower, before = Follower(store), position(store)
    db.execute("INSERT INTO t VALUES ('a', 1, 0), ('b', 2, 1)")
    db.execute("UPDATE t SET v = 5")
    assert follower.look() == {b"a"}
    assert store.changes(before).added == [b"a"]
    db.execute("UPDATE t SET gone = 1 - gone")
    assert follower.look() == {b"b"}
    db.execute("UPDATE t SET k = k || '!'")
    assert follower.look() == {b"b!"}
    db.execute("DELETE FROM t")
    assert follower.look() == set()
    store.close()


def test_a_unique_index_that_is_added_later_is_noticed(connect):
    db = connect("CREATE TABLE t (k TEXT PRIMARY KEY, v, gone INT)")
    store = in_place(connect, where="gone = 0")
    follower = Follower(store)
    db.execute("INSERT INTO t VALUES ('a', 1, 0)")
    assert follower.look() == {b"a"}
    db.execute("CREATE UNIQUE INDEX further ON t (v)")
    assert store.changes(follower.since) is None
    follower.rebuild()
    db.execute("INSERT OR REPLACE INTO t VALUES ('b', 1, 0)")  # which removes 'a'
    follower.rebuild()
    db.execute("INSERT INTO t VALUES ('a', 2, 0)")
    assert follower.look() == {b"a", b"b"}
    store.close()
