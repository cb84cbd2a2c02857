"""Existing tables that others write, and guards against a dictionary."""

import sqlite3

import numpy as np
import pytest
from guard_filters import adaptive_cuckoo, adaptive_stacked, quotient, telescoping
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from stand_in import Prefixes

import tamis
from tamis import stores
from tamis.stores.sqlite.connections import Connections


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "data.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE users (name TEXT PRIMARY KEY, born TEXT)")
    db.executemany("INSERT INTO users VALUES (?, ?)", [(f"u{i}", str(i)) for i in range(50)])
    yield path, db
    db.close()


@pytest.mark.parametrize(
    "make", [quotient, Prefixes, telescoping, adaptive_cuckoo, adaptive_stacked]
)
def test_guards_a_table_in_place(table, make, fresh_stand_in):
    path, db = table
    with tamis.Guard(stores.SQLite(path, table="users", key="name", value="born"), make()) as g:
        assert g.get_many([f"u{i}" for i in range(50)]) == [str(i) for i in range(50)]
        # Other programs insert, delete and rename.
        db.execute("INSERT INTO users VALUES ('ada', '1815')")
        db.execute("DELETE FROM users WHERE name = 'u0'")
        db.execute("UPDATE users SET name = 'renamed' WHERE name = 'u1'")
        db.execute("INSERT OR REPLACE INTO users VALUES ('u2', 'again')")
        assert g.get("ada") == "1815"
        assert g.get_many(["u0", "u1", "renamed", "u2"]) == [None, None, "1", "again"]
        assert g.get_many([f"absent {i}" for i in range(200)]) == [None] * 200
        g.put("grace", "1906")
        assert db.execute("SELECT born FROM users WHERE name = 'grace'").fetchone() == ("1906",)
        db.execute("DELETE FROM users")
        db.execute("INSERT INTO users VALUES ('last', 'one')")
        assert g.get_many(["last", "grace", "ada"]) == ["one", None, None]
        assert g.stats.rebuilds == 1
        assert g.stats.passed == 0
        # Only a filter that adapts needs the index.
        assert len(g.store.run(0, 2**64 - 1)) == (1 if g.filter.adapts else 0)


def test_growth_while_others_write_leaves_no_extra_slots(table):
    """A key that is indexed but not inserted yet must not be matched to a slot of the filter."""
    path, db = table
    store = stores.SQLite(path, table="users", key="name", value="born")
    with tamis.Guard(store, telescoping()) as g:
        assert len(g.filter) == 50
        db.executemany("INSERT INTO users VALUES (?, 'x')", [(f"v{i}",) for i in range(150)])
        assert g.get_many([f"v{i}" for i in range(150)]) == ["x"] * 150
        assert len(g.filter) == 200
        assert g.get_many([f"u{i}" for i in range(50)]) == [str(i) for i in range(50)]


def test_a_snapshot_follows_the_journal(table, tmp_path):
    path, db = table

    def opened():
        store = stores.SQLite(path, table="users", key="name", value="born")
        return tamis.Guard(store, quotient(), snapshot=tmp_path / "filter")

    opened().close()
    db.execute("INSERT INTO users VALUES ('ada', '1815')")
    db.execute("DELETE FROM users WHERE name = 'u0'")
    with opened() as g:
        assert g.stats.rebuilds == 0
        assert len(g.filter) == 50
        assert g.get_many(["ada", "u0", "u1"]) == ["1815", None, "1"]
    # A journal that was trimmed, or has another history, does not cover the changes.
    db.execute("UPDATE tamis_users_journal SET token = token + 1")
    with opened() as g:
        assert g.stats.rebuilds == 1


def test_a_table_that_cannot_be_guarded_is_refused(tmp_path):
    path = tmp_path / "data.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE t (k TEXT, v TEXT, n REAL UNIQUE, i TEXT UNIQUE COLLATE NOCASE)")
    db.close()
    for arguments, says in (
        ({"table": "t"}, "pass all of table, key and value"),
        ({"table": "x", "key": "k", "value": "v"}, "must be a table of the database, not 'x'"),
        ({"table": "t", "key": "x", "value": "v"}, r"column of 't' \(k, v, n, i\), not 'x'"),
        ({"table": "t", "key": "k", "value": "v"}, "a unique index of its own"),
        ({"table": "t", "key": "n", "value": "v"}, "of type REAL"),
        ({"table": "t", "key": "i", "value": "v"}, "BINARY"),
    ):
        with pytest.raises(ValueError, match=says):
            stores.SQLite(path, **arguments)


def test_a_database_in_a_missing_folder_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"path must be in an existing folder, not .*nofolder"
    ):
        stores.SQLite(tmp_path / "nofolder" / "x.db")


def test_columns_of_integers_and_blobs(tmp_path):
    path = tmp_path / "data.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE n (k INTEGER PRIMARY KEY, v TEXT)")
    db.execute("CREATE TABLE b (k BLOB UNIQUE, v BLOB)")
    db.execute("INSERT INTO n VALUES (5, 'five'), (-1, NULL)")
    db.execute("INSERT INTO b VALUES (x'6161', 'a'), ('text', 'b'), (NULL, 'c'), (1.5, 'd')")
    with tamis.Guard(stores.SQLite(path, table="n", key="k", value="v"), quotient()) as g:
        assert g.get_many([5, -1, 6, b"5", 2**64 - 1]) == ["five", "", None, None, None]
        for key in ("5", "-1.5", " 7 "):
            with pytest.raises(
                TypeError, match=f"'k', of type integer, must be an integer, not {key!r}"
            ):
                g.get(key)
        with pytest.raises(TypeError, match="cannot hold the key"):
            g.put("five", "x")
        assert g.delete(5)
    with tamis.Guard(stores.SQLite(path, table="b", key="k", value="v"), quotient()) as g:
        assert g.get_many([b"aa", "aa", "text", b"\xff"]) == ["a", "a", "b", None]
        g.put("text", "new")
        assert g.delete_many(["text", "aa"]) == [True, True]
    assert db.execute("SELECT count(*) FROM b").fetchone() == (2,)
    db.close()


class AgainstADictionary(RuleBasedStateMachine):
    """Puts, deletes, queries, crashes and other writers, compared with a dictionary."""

    keys = st.integers(0, 12).map(lambda i: [f"key {i}", i][i % 2])

    @initialize(
        kind=st.sampled_from(["memory", "sqlite", "in place"]),
        make=st.sampled_from([quotient, Prefixes, telescoping, adaptive_cuckoo, adaptive_stacked]),
    )
    def begin(self, kind, make):
        self.make = make
        self.model = {}
        self.other = None
        if kind == "memory":
            self.store = stores.Memory()
        elif kind == "sqlite":
            self.store = stores.SQLite(":memory:")
        else:
            self.store = object.__new__(stores.SQLite)
            connect, made = Connections.connect, []

            def prepared(connections):
                db = connect(connections)
                db.execute("CREATE TABLE t (k TEXT UNIQUE, v BLOB)")
                made.append(db)
                return db

            Connections.connect = prepared
            try:
                self.store.__init__(":memory:", table="t", key="k", value="v")
            finally:
                Connections.connect = connect
            self.other = made[0]
        self.open()

    def open(self):
        opened = tamis.guard.opening.from_bytes
        tamis.guard.opening.from_bytes = lambda data, key=None: (
            Prefixes() if self.make is Prefixes else opened(data, key=key)
        )
        try:
            self.guard = tamis.Guard(self.store, self.make())
        finally:
            tamis.guard.opening.from_bytes = opened

    def fits(self, key):
        return self.other is None or isinstance(key, str)

    @rule(key=keys, value=st.sampled_from([b"x", "y"]))
    def put(self, key, value):
        if self.fits(key):
            self.guard.put(key, value)
            self.model[key] = value

    @rule(keys=st.lists(keys, max_size=5))
    def delete(self, keys):
        keys = [*filter(self.fits, keys)]
        was = self.guard.delete_many(keys)
        assert was == [self.model.pop(key, None) is not None for key in keys]

    @rule(key=keys)
    def get(self, key):
        if self.fits(key):
            assert self.guard.get(key) == self.model.get(key)
        else:
            with pytest.raises(TypeError, match="must be text, not"):
                self.guard.get(key)

    @rule(start=st.integers(0, 1000))
    def absent_queries(self, start):
        absent = range(start + 100, start + 120)
        queries = absent if self.other is None else [*map(str, absent)]
        assert self.guard.get_many(queries) == [None] * 20

    @rule(key=keys)
    def put_that_fails(self, key):
        """The commit fails after the filter has the key, which leaves a false positive."""
        if not self.fits(key):
            return
        put_many = self.store.put_many

        def fails(*_):
            raise OSError

        self.store.put_many = fails
        with pytest.raises(OSError):  # noqa: PT011
            self.guard.put(key, "lost")
        self.store.put_many = put_many

    @rule(key=keys, added=st.booleans())
    def other_writes(self, key, added):
        if self.other and self.fits(key):
            if added:
                self.other.execute("INSERT OR REPLACE INTO t VALUES (?, 'z')", (key,))
                self.model[key] = "z"
            else:
                self.other.execute("DELETE FROM t WHERE k = ?", (key,))
                self.model.pop(key, None)

    @rule()
    def reopen(self):
        self.store.release(self.guard.driver.protocol.owner)
        self.open()

    def teardown(self):
        if hasattr(self, "guard"):
            self.guard.close()

    @invariant()
    def denies_no_key(self):
        if hasattr(self, "guard"):
            keys = list(self.model)
            assert self.guard.get_many(keys) == [self.model[key] for key in keys]


AgainstADictionary.TestCase.settings = settings(
    max_examples=settings.default.max_examples, stateful_step_count=25, deadline=None
)


TestAgainstADictionary = AgainstADictionary.TestCase


def test_a_key_is_found_as_soon_as_it_is_committed():
    """The filter has it before the store, so a stored key is never denied."""
    store = stores.Memory()
    g = tamis.Guard(store, quotient())
    put_many = store.put_many

    def commit(*arguments):
        committed = put_many(*arguments)
        assert g.get_many(range(50)) == ["x"] * 50
        return committed

    store.put_many = commit
    g.put_many((i, "x") for i in range(50))


NOT_KEYS = ["\ud800", bytearray(b"a"), 1.5, None, True, np.bool_(True), 2**64, -(2**63) - 1, ()]


@pytest.mark.parametrize("key", NOT_KEYS, ids=lambda key: type(key).__name__)
def test_what_is_not_a_key_is_refused_as_by_a_filter(key):
    g = tamis.Guard(stores.Memory(), quotient())
    with pytest.raises((TypeError, OverflowError)) as expected:
        key in g.filter  # noqa: B015
    for use in (lambda: g.get(key), lambda: g.put(key, "x"), lambda: g.delete(key)):
        with pytest.raises(expected.type) as raised:
            use()
        assert str(raised.value) == str(expected.value)
    with pytest.raises(expected.type) as expected:
        g.filter.contains([key])
    for distrusted in (False, True):
        if distrusted:
            g.driver.tasks["rebuild"].close()
            g.driver.distrust("for a test")
        for use in (lambda: g.get_many([key]), lambda: g.delete_many([key])):
            with pytest.raises(expected.type) as raised:
                use()
            assert str(raised.value) == str(expected.value)


def test_all_ways_to_write_a_key_are_one_key():
    pyarrow = pytest.importorskip("pyarrow")

    class Text(str):
        __slots__ = ()

    g = tamis.Guard(stores.Memory(), quotient())
    for same in (["a", b"a", Text("a"), np.str_("a")], [5, np.int8(5), pyarrow.scalar(5)]):
        for key in same:
            g.put(key, "x")
            assert len(list(g)) == 1
            assert g.get_many(same[:2]) == ["x"] * 2
            assert all(g.get(other) == "x" for other in same)
            assert g.delete(same[-1])
    assert len(g.filter) == 0


@pytest.mark.parametrize("keys", ["abc", b"abc", 5])
def test_one_key_is_no_list_of_keys(keys):
    g = tamis.Guard(stores.Memory(), quotient())
    with pytest.raises(TypeError) as expected:
        g.filter.contains(keys)
    for use in (g.get_many, g.delete_many):
        with pytest.raises(TypeError) as raised:
            use(keys)
        assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("items", [5, ["a"], [("a",)], [("a", "b", "c")], [5]])
def test_items_are_pairs(items):
    g = tamis.Guard(stores.Memory(), quotient())
    with pytest.raises(TypeError, match="items must be a mapping of keys to values, or pairs"):
        g.put_many(items)
