"""SQLite's leases, tokens, columns of mixed types, and writers that keep the database locked."""

import os
import sqlite3
import threading
import time
from contextlib import closing

import pytest
from positions import position

import tamis
from tamis import stores


def telescoping():
    return tamis.Telescoping(capacity=1000, fpr=2**-4)


def hasher(keys):
    return tamis.guard.replica.apply_by_type(lambda some: tamis.hash_keys(some, seed=1), keys)


def writer(store, owner="one", seconds=60.0):
    assert store.lease(owner, seconds)
    store.attach(owner, hasher, b"1")
    return store


@pytest.fixture
def table(tmp_path):
    """A path, a connection of a stranger, and a function that opens the store."""
    path = tmp_path / "data.db"
    db = sqlite3.connect(path, isolation_level=None, timeout=0)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")
    opened = []

    def store(**options):
        opened.append(stores.SQLite(path, table="t", key="k", value="v", **options))
        return opened[-1]

    yield path, db, store
    db.close()
    for each in opened:
        each.close()


# The lease.


@pytest.fixture
def pair(tmp_path):
    """Two stores of one file."""
    with (
        closing(stores.SQLite(tmp_path / "data.db")) as one,
        closing(stores.SQLite(tmp_path / "data.db")) as two,
    ):
        yield one, two


def test_a_step_of_the_wall_clock_changes_no_lease(pair, monkeypatch):
    one, two = pair
    assert one.lease("one", 10)
    wall = time.time
    for step in (11.0, 3600.0, -3600.0):
        monkeypatch.setattr(time, "time", lambda step=step: wall() + step)
        assert not two.lease("two", 10)
        assert one.lease("one", 10)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self, *_):
        return self.now


def test_a_lease_is_granted_to_others_once_it_is_over(pair, monkeypatch):
    one, two = pair
    start = 1000.0
    monkeypatch.setattr("tamis.stores.sqlite.tables.now", lambda: start)
    assert one.lease("one", 60)
    for seconds, granted in ((59.9, False), (60.1, True)):
        start = 1000.0 + seconds
        assert two.lease("two", 60) == granted


@pytest.mark.parametrize("known", [True, False])
def test_a_lease_of_another_boot_is_watched(pair, monkeypatch, known):
    clock = Clock()
    monkeypatch.setattr(time, "clock_gettime", clock)
    one, two = pair
    for boot in ("before", "after") if known else (None,):
        monkeypatch.setattr(stores.sqlite.tables, "clock_id", lambda boot=boot: boot)
        if boot != "after":
            assert one.lease("one", 10)
    clock.now = 5.0  # the clock of a boot starts from zero
    assert not two.lease("two", 10)
    clock.now += 9
    assert not two.lease("two", 10)
    clock.now += 1.2
    assert two.lease("two", 10)
    assert not one.lease("one", 10)


def test_the_clock_has_a_boot_and_never_steps():
    from tamis._clock import clock_id, now

    assert clock_id() is None or len(clock_id()) > 30
    assert now() <= now()


# Tokens, and writers that keep the database locked.


def test_a_token_changes_when_others_write(table):
    _, db, opened = table
    store = opened()
    token = store.change_token()
    assert store.change_token() == token
    store.get_many([b"a"])
    assert store.change_token() == token
    db.execute("INSERT INTO t VALUES ('a', '1')")
    assert store.change_token() != token


def test_reads_do_not_wait_for_writes(table):
    _, db, opened = table
    db.execute("INSERT INTO t VALUES ('a', '1')")
    store = writer(opened(timeout=20))
    since = position(store)
    db.execute("INSERT INTO t VALUES ('b', '2')")
    db.execute("BEGIN IMMEDIATE")  # a stranger's open transaction
    put = threading.Thread(target=store.put_many, args=([b"c"], ["3"], "one"))
    put.start()
    while store._connections.lock.acquire(blocking=False):  # until the put has begun, and waits
        store._connections.lock.release()
        time.sleep(0.001)
    assert store.get_many([b"a", b"b"]) == ["1", "2"]
    assert store.change_token() == store.change_token()
    assert position(store) != since
    assert store.changes(since).added == [b"b"]
    assert len(store.run(0, 2**64 - 1)) == 2  # although the index cannot be written now
    db.execute("COMMIT")
    put.join()
    assert store.changes(since).added == [b"b", b"c"]
    assert len(store.run(0, 2**64 - 1)) == 3


def test_a_locked_database_is_a_store_error(table):
    _, db, opened = table
    store = writer(opened(timeout=0.05))
    db.execute("BEGIN IMMEDIATE")
    for call in (
        lambda: store.put_many([b"c"], ["3"], "one"),
        lambda: store.delete_many([b"c"], "one"),
        lambda: store.lease("one", 10),
        lambda: store.metadata("x", b"y"),
    ):
        with pytest.raises(tamis.StoreError, match=r"data\.db.*locked"):
            call()
    db.execute("ROLLBACK")
    store.put_many([b"c"], ["3"], "one")


def test_a_full_disk_is_a_store_error_and_nothing_is_written(pair):
    store = writer(pair[0])
    store.put_many([1], ["x"], "one")
    start = position(store)
    with store._writing() as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
    store._connections.writer().execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(tamis.StoreError, match="full"):
        store.put_many([2], ["x" * 100_000], "one")
    assert store.get_many([2]) == [None]
    assert position(store) == start
    store.put_many([3], ["x"], "one")
    assert len(store.run(0, 2**64 - 1)) == 2


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("nofolder/x.db", FileNotFoundError, "there is no folder"),
        ("folder", IsADirectoryError, "path must be a database file, not the folder"),
        ("text", tamis.FormatError, "path must be an SQLite database, not"),
    ],
)
def test_a_path_without_a_database_is_named(tmp_path, name, error, says):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("This is no database." * 100)
    with pytest.raises(error, match=says):
        stores.SQLite(tmp_path / name)


def test_a_closed_store_stays_closed(tmp_path):
    store = stores.SQLite(tmp_path / "data.db")
    store.close()
    with pytest.raises(ValueError, match="is closed"):
        store.get_many([1])


# Columns.


@pytest.mark.parametrize("declared", ["TEXT", "BLOB", "INTEGER", "INT"])
def test_every_key_of_a_column_of_mixed_types_is_found(tmp_path, declared):
    path = tmp_path / "data.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"CREATE TABLE t (k {declared} UNIQUE, v TEXT)")
    for i, key in enumerate([b"blob", b"\xff\xfe", "text", "7", b"8", 9, 10.0, 2.5, None, "é"]):
        db.execute("INSERT INTO t VALUES (?, ?)", (key, f"value {i}"))
    with tamis.Guard(stores.SQLite(path, table="t", key="k", value="v"), telescoping()) as g:
        keys = list(g)
        assert len(keys) >= 7
        assert None not in g.get_many(keys)
        assert None not in [g.get(key) for key in keys]
        assert len(g.filter) == len(keys) == len(g.store.run(0, 2**64 - 1))
        for key in (b"blob", "text"):  # no second row with the same bytes
            if declared in ("TEXT", "BLOB"):
                g.put(key, "again")
                assert g.get(key) == "again"
        assert len(list(g)) == len(keys)
        assert g.delete_many(keys) == [True] * len(keys)
        assert list(g) == []
        assert len(g.store.run(0, 2**64 - 1)) == 0
        left = [key for (key,) in db.execute("SELECT k FROM t")]
        assert all(key is None or isinstance(key, float) for key in left)
    db.close()


def test_text_is_not_taken_for_a_number(tmp_path):
    path = tmp_path / "data.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)")
    db.execute("INSERT INTO t VALUES (12, 'twelve')")
    with tamis.Guard(stores.SQLite(path, table="t", key="k", value="v"), telescoping()) as g:
        assert g.store.get_many([b"12", 12]) == [None, "twelve"]
        assert g.delete(b"12") is False
        assert g.get(12) == "twelve"
    db.close()


# The journal.


def test_the_journal_is_trimmed_whoever_writes(table, monkeypatch):
    monkeypatch.setattr(stores.sqlite.tables, "JOURNAL", 2000)
    _, db, opened = table
    store = opened()
    first = position(store)
    with db:
        db.execute("BEGIN")
        db.executemany("INSERT INTO t VALUES (?, '')", [(str(i),) for i in range(5500)])
    rows = db.execute("SELECT count(*) FROM tamis_t_journal").fetchone()[0]
    assert 2000 <= rows <= 3000
    assert store.changes(first) is None


def test_changes_that_lead_to_another_history_are_unknown(table):
    _, db, opened = table
    store = opened()
    since = position(store)
    db.execute("INSERT INTO t VALUES ('a', '')")
    assert store.changes(since).added == [b"a"]
    assert store.changes("1.another history") is None
    assert store.changes("999.x") is None


def test_what_other_triggers_write_is_found(table):
    _, db, opened = table
    db.execute(
        "CREATE TRIGGER double AFTER INSERT ON t WHEN new.k NOT LIKE '%-copy' "
        "BEGIN INSERT INTO t VALUES (new.k || '-copy', new.v); END"
    )
    with tamis.Guard(opened(), telescoping()) as g:
        g.put("a", "x")
        assert g.get_many(["a", "a-copy"]) == ["x", "x"]
        assert len(g.store.run(0, 2**64 - 1)) == 2


def test_unguard_leaves_nothing_behind(table):
    _, db, opened = table
    store = opened()
    db.execute("INSERT INTO t VALUES ('a', '1')")
    store.unguard()
    assert db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'tamis%'").fetchall() == []
    db.execute("INSERT INTO t VALUES ('b', '1')")


def test_a_forked_child_opens_its_own_connection(tmp_path):
    store = writer(stores.SQLite(tmp_path / "data.db"))
    store.put_many([1], ["x"], "one")
    child = os.fork()
    if child == 0:
        try:
            assert store._connections._writer is None
            assert store.get_many([1]) == ["x"]
            assert not store.lease("one", 60)
            try:
                store.put_many([2], ["y"], "one")
            except tamis.LeaseError:
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.put_many([3], ["z"], "one")
    assert store.get_many([1, 2, 3]) == ["x", None, "z"]
    store.close()


def test_a_new_file_is_private(tmp_path):
    """It holds the secret key and the values; a file that exists keeps its permissions."""
    old = os.umask(0)
    try:
        with closing(stores.SQLite(tmp_path / "new.db")) as store:
            writer(store).put_many([1], ["x"], "one")
            assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
        with closing(sqlite3.connect(tmp_path / "old.db")) as db:
            db.execute("CREATE TABLE t (k, v)")
        with closing(stores.SQLite(tmp_path / "old.db")):
            assert (tmp_path / "old.db").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(old)
