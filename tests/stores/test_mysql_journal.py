"""The journal of a table of MariaDB: gaps, trimming, and what makes it unknown."""

import itertools
import threading
import time
from contextlib import closing

import pytest
from mysql_tables import Follower, Table, prepare_insert

import tamis
from tamis.stores.mysql import journal as module


@pytest.fixture
def table(mysql_table):
    return mysql_table


def test_a_gap_is_kept_while_its_transaction_is_open(table, monkeypatch):
    """Also if somebody reads InnoDB's list of transactions all the time, and so makes it stale."""
    monkeypatch.setattr(module, "_PAUSE", 0.02)
    follower = Follower(table.store())
    ended, listing = threading.Event(), table.connect()

    def poll():
        while not ended.wait(0.005):
            table.run("SELECT COUNT(*) FROM information_schema.innodb_trx", db=listing)

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        for i in range(10):
            early, late = table.connect(autocommit=False), table.connect(autocommit=False)
            table.insert(f"early {i}", db=early)
            table.insert(f"late {i}", db=late)
            late.commit()
            for _ in range(8):
                follower.look()
                time.sleep(0.01)
            early.commit()
            assert f"early {i}".encode() in follower.look()
    finally:
        ended.set()
        poller.join()


def test_gaps_of_transactions_that_rolled_back_are_dropped(table):
    follower = Follower(table.store())
    rolled, older = table.connect(autocommit=False), table.connect(autocommit=False)
    table.insert("older", db=older)
    table.insert("gone", db=rolled)
    rolled.rollback()
    table.insert("kept")
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert follower.look() == {b"kept"}
    assert follower.gaps == (
        (1, 2),
    )  # the list of transactions does not say whose numbers they are
    older.commit()
    assert follower.look() == {b"kept", b"older"}
    deadline = time.monotonic() + 20
    while follower.gaps:
        assert time.monotonic() < deadline
        follower.look()


def test_the_journal_is_trimmed(table, monkeypatch):
    monkeypatch.setattr(module, "JOURNAL", 50)
    monkeypatch.setattr(module, "_TRIM_PAUSE", 0)
    monkeypatch.setattr(module, "_PAUSE", 0.11)
    store = table.store()
    behind, follower = Follower(store), Follower(store)
    journal = f"`tamis_{table.name}_journal`"
    deadline = time.monotonic() + 20
    for i in itertools.count():
        table.insert(*(f"{i} {j}" for j in range(20)))
        follower.look()
        ((count,),) = table.run(f"SELECT COUNT(*) FROM {journal}")
        ((trimmed,),) = table.run(f"SELECT trimmed FROM `tamis_{table.name}_state`")
        if trimmed:
            break
        assert time.monotonic() < deadline
    assert follower.rebuilds == 0
    assert count <= 20 * (i + 1)
    assert table.run(f"SELECT COUNT(*) FROM {journal} WHERE id <= {trimmed}") == ((0,),)
    assert behind.look() == follower.keys == table.keys(store)
    assert behind.rebuilds == 1


def test_too_many_gaps_rebuild(table, monkeypatch):
    monkeypatch.setattr("tamis.stores.mysql.store.MAX_GAPS", 3)
    store = table.store()
    store._journal.may_list = False  # as without the PROCESS privilege
    follower = Follower(store)
    for i in range(5):
        rolled = table.connect(autocommit=False)
        table.insert(f"rolled {i}", db=rolled)
        table.insert(f"kept {i}")
        rolled.rollback()
    assert store.changes(follower.position) is None
    assert follower.look() == table.keys(store)
    assert follower.gaps == ()


def test_a_user_without_process_keeps_gaps(table, monkeypatch):
    table.run("CREATE OR REPLACE USER plain@localhost IDENTIFIED BY 'secret'")
    rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, TRIGGER, LOCK TABLES"
    table.run(f"GRANT {rights} ON tamis.* TO plain@localhost")
    store = table.store(table.url.replace("root@", "plain:secret@"))
    follower = Follower(store)
    rolled = table.connect(autocommit=False)
    table.insert("rolled", db=rolled)
    table.insert("kept")
    rolled.rollback()
    until = time.monotonic() + 1.3
    while time.monotonic() < until:
        assert follower.look() == {b"kept"}
    assert follower.gaps == ((1, 1),)
    # But for a moment without writers, which is looked for when the journal is long.
    for name, value in {"JOURNAL": 5, "_PAUSE": 0, "_LOCK_PAUSE": 0, "_TRIM_PAUSE": 0}.items():
        monkeypatch.setattr(module, name, value)
    table.insert(*(f"more {i}" for i in range(20)))
    for _ in range(4):
        follower.look()
    assert follower.gaps == ()
    assert table.run(f"SELECT COUNT(*) FROM `tamis_{table.name}_journal`") == ((5,),)
    assert follower.look() == table.keys(store)
    assert follower.rebuilds == 0


@pytest.mark.parametrize(
    "change",
    [
        "DROP TRIGGER `tamis_NAME_insert`",
        "CREATE OR REPLACE TRIGGER `tamis_NAME_insert` AFTER INSERT ON TABLE_NAME "
        "FOR EACH ROW SET @x = 1",
        "ALTER TABLE TABLE_NAME ADD COLUMN more INT",
        "ALTER TABLE TABLE_NAME MODIFY id VARBINARY(50)",
        "CREATE TABLE `copy of NAME` LIKE TABLE_NAME; "
        "RENAME TABLE TABLE_NAME TO `old NAME`, `copy of NAME` TO TABLE_NAME",
        "DROP TABLE TABLE_NAME; CREATE TABLE TABLE_NAME (id VARBINARY(9) PRIMARY KEY, seen TEXT)",
        "DELETE FROM `tamis_NAME_live`",
        "TRUNCATE TABLE TABLE_NAME",
    ],
)
def test_changes_of_the_schema_rebuild(table, change, monkeypatch):
    monkeypatch.setattr(module, "_LONG_PAUSE", 0)
    table.insert("a")
    follower = Follower(table.store())
    for statement in change.replace("NAME`", f"{table.name}`").split("; "):
        table.run(statement.replace("tamis_NAME_", f"tamis_{table.name}_"))
    follower.look()  # TRUNCATE is noticed after a look, as it only leaves keys in the filter
    assert follower.store.changes(follower.position) is None or follower.rebuilds == 1
    table.run("INSERT INTO TABLE_NAME (id, seen) VALUES ('b', 'x')")
    assert follower.look() == table.keys(follower.store)
    table.run("INSERT INTO TABLE_NAME (id, seen) VALUES ('c', 'x')")
    assert follower.look() == table.keys(follower.store)
    assert follower.rebuilds == 1


def test_a_restart_of_the_server_rebuilds(mysql_server):
    with closing(Table(mysql_server.url)) as table:
        table.insert("a")
        follower = Follower(table.store(timeout=5))
        table.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        prepare_insert(table, "prepared")
        mysql_server.stop()
        with pytest.raises(tamis.StoreError, match=r"^MySQL at 127.0.0.1:\d+ is unreachable"):
            follower.look()
        mysql_server.start()
        assert follower.store.changes(follower.position) is None
        follower.rebuild()
        table.db = table.connect()
        table.insert("b")
        until = time.monotonic() + 1
        while time.monotonic() < until:
            assert follower.look() == table.keys(follower.store) == {b"a", b"b"}
        table.run("XA COMMIT 'x'")
        assert follower.look() == table.keys(follower.store) == {b"a", b"b", b"prepared"}


def test_a_table_that_is_gone_is_an_error(table):
    follower = Follower(table.store())
    table.run("DROP TABLE TABLE_NAME")
    with pytest.raises(tamis.StoreError, match="was changed since the store was opened"):
        follower.look()


def test_unguard_leaves_nothing_behind(table):
    store, other = table.store(), table.store()
    follower = Follower(other)
    assert store.lease("one", 600)
    store.attach("one", tamis.hash_keys, b"1")
    sql = ";".join(store.sql("app@localhost"))
    assert all(f"tamis_{table.name}_{part}" in sql for part in ("journal", "insert"))
    assert "TO 'app'@'localhost'" in sql
    store.unguard()
    like = f"tamis%{table.name}%"
    for what in ("tables WHERE table_name", "triggers WHERE trigger_name"):
        assert table.run(f"SELECT 1 FROM information_schema.{what} LIKE %s", (like,)) == ()
    with pytest.raises(tamis.StoreError, match="was changed since the store was opened"):
        follower.look()
    table.insert("a")


def test_opening_does_not_wait_behind_an_open_transaction(table):
    reader = table.connect(autocommit=False)
    table.insert("open", db=reader)
    with pytest.raises(tamis.StoreError, match="some transaction on the table was open"):
        table.store(timeout=1)
    table.insert("not blocked")
    reader.commit()
    assert Follower(table.store()).keys == {b"open", b"not blocked"}
