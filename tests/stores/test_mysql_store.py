"""An existing table of MariaDB that others write: every look leads to the keys of the table."""

import os
import random
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from mysql_tables import TEXT, Follower, Table, prepare_insert

import tamis
import tamis.testing.stores as checks
from tamis.stores.mysql import journal as module

# The contract.


@pytest.fixture
def table(mysql_table):
    return mysql_table


class Integers:
    def __init__(self, url):
        self.table = Table(url, "id BIGINT PRIMARY KEY, seen TEXT")

    def open(self):
        return self.table.store()


@pytest.mark.parametrize(
    "check",
    [
        checks.index_holds_the_hash_of_every_key,
        checks.another_seed_rebuilds_the_index,
        checks.positions_name_states_of_the_set,
        checks.changes_come_in_pieces,
    ],
)
def test_contract(check, mysql_url):
    source = Integers(mysql_url)
    with closing(source.table):
        check(checks.StoreCase(source.open))


def test_a_lease_has_one_holder_and_expires(table):
    one, two = table.store(), table.store()
    assert one.lease("one", 0.2)
    assert not two.lease("two", 0.2)
    with pytest.raises(tamis.LeaseError):
        two.attach("two", tamis.hash_keys, b"1")
    deadline = time.monotonic() + 30
    while not two.lease("two", 0.2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert two.lease("two", 600)
    assert not one.lease("one", 600)
    one.release("one")
    assert not one.lease("one", 600)
    two.release("two")
    assert one.lease("one", 600)


def test_the_index_follows_the_changes_that_were_given(table):
    """Also after a rebuild, from another position than the one that the index has."""
    store = table.store()
    follower, rows = (
        Follower(store),
        lambda: {*map(tuple, np.concatenate([*store.scan()]).tolist())},
    )
    table.insert("a", "b")
    assert store.lease("one", 600)
    store.attach("one", tamis.hash_keys, b"1")
    follower.look()
    hashes = lambda keys: {*map(tuple, tamis.hash_keys(sorted(keys)).tolist())}  # noqa: E731
    table.insert("c")
    table.run("DELETE FROM TABLE_NAME WHERE id = 'a'")
    assert rows() == hashes([b"a", b"b"])
    assert rows() == hashes(follower.keys)
    follower.rebuild()
    table.insert("d")
    assert rows() == hashes([b"a", b"b"])
    assert follower.look() == table.keys(store)
    assert rows() == hashes(follower.keys)
    table.run("ALTER TABLE TABLE_NAME ADD COLUMN more INT")
    table.run("INSERT INTO TABLE_NAME (id) VALUES ('e')")
    follower.look()
    follower.look()
    assert rows() == hashes(follower.keys) == hashes(table.keys(store))
    other = table.store()
    store.release("one")
    store.close()
    assert other.lease("two", 600)
    table.run("INSERT INTO TABLE_NAME (id) VALUES ('f')")
    other.attach("two", tamis.hash_keys, b"1")
    assert len(other.run(0, 2**64 - 1)) == 5


def test_a_forked_child_has_connections_of_its_own(table):
    store = table.store()
    store.put_many([b"a"], ["x"], "one")
    if not (child := os.fork()):
        os._exit(0 if store.get_many([b"a"]) == ["x"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.get_many([b"a"]) == ["x"]


def test_everybody_writes_without_the_lease(table):
    one, two = table.store(), table.store()
    assert one.lease("one", 600)
    assert two.put_many([b"a", b"b"], ["1", "2"], "two").existed == [False, False]
    assert one.put_many([b"b", b"c"], ["2", None], "one").existed == [True, False]
    assert two.get_many([b"a", b"b", b"c", b"d"]) == ["1", "2", "", None]
    assert two.delete_many([b"d", b"a"], "two").existed == [False, True]
    assert one.get_many([b"a"]) == [None]


def test_a_guard_follows_other_writers(table):
    with tamis.Guard(table.store(), tamis.Quotient(capacity=1000, fpr=2**-8)) as g:
        g.put("ada", "1815")
        table.insert("grace")
        assert g.get_many(["ada", "grace", "alan"]) == ["1815", "x", None]
        table.run("DELETE FROM TABLE_NAME WHERE id = 'ada'")
        assert g.get("ada") is None


# A table that others write.


def histories():
    """Tables, and a key of each for a number."""
    packed = f"shop {TEXT}, id INT, seen TEXT, paid ENUM('no', 'yes'), PRIMARY KEY (shop, id)"
    yield "text", f"id {TEXT} UNIQUE, seen TEXT", "id", None, lambda n: (f"kéy {n}",)
    yield "integer", "id INT UNSIGNED UNIQUE, seen TEXT", "id", None, lambda n: (n,)
    yield "tuple", packed, ("shop", "id"), "paid = 'yes'", lambda n: ("eu" * (n % 3), n)


@pytest.mark.parametrize(
    ("columns", "key", "where", "key_of"),
    [case[1:] for case in histories()],
    ids=[case[0] for case in histories()],
)
def test_every_look_equals_the_table(mysql_url, monkeypatch, columns, key, where, key_of):
    """Transactions that commit in any order, roll back, and lose statements and savepoints."""
    monkeypatch.setattr(module, "_PAUSE", 0.11)
    rng = random.Random(7)
    with closing(Table(mysql_url, columns)) as table:
        table.key, table.where = key, where
        follower, limited = (Follower(table.store()) for _ in range(2))
        writers = [Writer(table, rng, key_of) for _ in range(5)]
        for step in range(700):
            rng.choice(writers).step()
            assert follower.look() == table.keys(follower.store), step
            if step % 7 == 0:
                assert limited.look(limit=3) == follower.keys, step
        assert follower.rebuilds == limited.rebuilds == 0
        for writer in writers:
            writer.run("ROLLBACK")
        deadline = time.monotonic() + 20
        while follower.gaps:  # all transactions have ended, so no gap can be filled
            assert time.monotonic() < deadline
            follower.look()
        assert follower.keys == table.keys(follower.store)


class Writer:
    """A connection that does not wait for locks."""

    def __init__(self, table, rng, key_of):
        self.table, self.rng, self.key_of = table, rng, key_of
        self.db = table.connect()
        self.columns = [table.key] if isinstance(table.key, str) else [*table.key]
        level = rng.choice(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
        self.run(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        self.run("SET SESSION innodb_lock_wait_timeout = 0")

    def run(self, statement, arguments=None):
        import pymysql

        try:
            self.table.run(statement, arguments, self.db)
        except pymysql.MySQLError as error:  # duplicate keys, locks
            if error.args[0] not in (1062, 1205, 1213, 1020, 1305):
                raise

    def key(self):
        return self.key_of(self.rng.randrange(40))

    def step(self):
        names, marks = ", ".join(self.columns), ", ".join(["%s"] * len(self.columns))
        more = (", paid", ", %s") if self.table.where else ("", "")
        names, marks = f"{names}, seen{more[0]}", f"({marks}, 'x'{more[1]})"
        row = lambda: (*self.key(), *([self.paid()] if more[0] else []))  # noqa: E731
        match = " AND ".join(f"{name} = %s" for name in self.columns)
        change = ", ".join(f"{name} = %s" for name in self.columns)
        insert = f"INTO TABLE_NAME ({names}) VALUES {marks}"
        writes = [
            (f"INSERT {insert}", row()),
            (f"INSERT {insert}, {marks}, {marks}", (*row(), *row(), *row())),
            (f"INSERT IGNORE {insert}, {marks}", (*row(), *row())),
            (f"REPLACE {insert}, {marks}", (*row(), *row())),
            (f"INSERT {insert} ON DUPLICATE KEY UPDATE seen = 'y'", row()),
            (f"INSERT {insert} ON DUPLICATE KEY UPDATE {change}", (*row(), *self.key())),
            (f"UPDATE TABLE_NAME SET {change} WHERE {match}", (*self.key(), *self.key())),
            ("UPDATE TABLE_NAME SET seen = CONCAT(seen, 'z') WHERE LENGTH(seen) < 5", None),
            (f"DELETE FROM TABLE_NAME WHERE {match}", self.key()),
            ("DELETE FROM TABLE_NAME LIMIT 3", None),
        ]
        if more[0]:
            writes += [(f"UPDATE TABLE_NAME SET paid = %s WHERE {match}", row()[-1:] + self.key())]
        elif self.columns == ["id"]:
            nullify = f"UPDATE TABLE_NAME SET id = NULL WHERE {match}"
            writes += [(nullify, self.key()), (f"INSERT {insert}", (None,))]
            writes += [("UPDATE TABLE_NAME SET id = %s WHERE id IS NULL LIMIT 1", self.key())]
        ends = ["COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT s", "ROLLBACK TO SAVEPOINT s", "BEGIN"]
        if self.rng.random() < 0.35:
            self.run(self.rng.choice(ends))
        else:
            self.run(*self.rng.choice(writes))

    def paid(self):
        return self.rng.choice(["yes", "no", None])


def test_commits_in_another_order_than_the_journal(table):
    follower = Follower(table.store())
    early, late = table.connect(autocommit=False), table.connect(autocommit=False)
    table.insert("early", db=early)
    table.insert("late", db=late)
    late.commit()
    assert follower.look() == {b"late"}
    assert len(follower.gaps) == 1
    early.commit()
    assert follower.look() == {b"early", b"late"}
    assert follower.gaps == ()


def test_deadlocks_and_prepared_transactions(table):
    follower = Follower(table.store())
    table.insert("a", "b")
    dbs = [table.connect(autocommit=False) for _ in range(2)]
    barrier = threading.Barrier(2)

    def move(db, keys):
        import pymysql

        update = "UPDATE TABLE_NAME SET id = CONCAT(id, %s) WHERE id = %s"
        table.run(update, (keys[0], keys[0]), db)
        barrier.wait()
        try:
            table.run(update, (keys[0], keys[1]), db)
            db.commit()
        except pymysql.MySQLError as error:
            if error.args[0] != 1213:  # a deadlock: everything is rolled back
                raise

    threads = [
        threading.Thread(target=move, args=arguments)
        for arguments in zip(dbs, ("ab", "ba"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert follower.look() == table.keys(follower.store)
    assert follower.keys in ({b"aa", b"ba"}, {b"ab", b"bb"})

    prepare_insert(table, "x")
    table.insert("later")
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert b"x" not in follower.look()
    table.run("XA COMMIT 'x'")
    assert follower.look() == table.keys(follower.store)
    assert b"x" in follower.keys


def test_load_data_and_joins_are_followed(table, tmp_path):
    follower = Follower(table.store())
    table.run("INSERT INTO TABLE_NAME SELECT CONCAT('k', seq), '' FROM seq_1_to_50")
    assert len(follower.look()) == 50
    rows = tmp_path / "rows"
    rows.write_text("k1\tx\nk60\tx\n")
    db = table.connect(local_infile=True)
    table.run(f"LOAD DATA LOCAL INFILE '{rows}' REPLACE INTO TABLE TABLE_NAME", db=db)
    assert follower.look() == table.keys(follower.store)
    assert b"k60" in follower.keys
    table.run(
        "UPDATE TABLE_NAME a JOIN TABLE_NAME b ON b.id = CONCAT(a.id, '0') "
        "SET a.id = CONCAT('m', a.id)"
    )
    assert follower.look() == table.keys(follower.store)
    assert {b"mk1", b"mk5"} < follower.keys
    table.run("DELETE a FROM TABLE_NAME a JOIN TABLE_NAME b ON a.id = CONCAT('m', b.id, '0')")
    table.run("DELETE a, b FROM TABLE_NAME a JOIN TABLE_NAME b ON b.id = CONCAT(a.id, '0')")
    assert follower.look() == table.keys(follower.store)
    assert follower.rebuilds == 0


def test_writers_do_not_wait_for_each_other(table):
    table.store()
    slow, quick = table.connect(autocommit=False), table.connect(autocommit=False)
    for db in (slow, quick):
        table.run("SET SESSION innodb_lock_wait_timeout = 0, lock_wait_timeout = 0", db=db)
    table.run("INSERT INTO TABLE_NAME SELECT seq, '' FROM seq_1_to_100", db=slow)
    table.run("INSERT INTO TABLE_NAME SELECT seq, '' FROM seq_101_to_200", db=quick)
    table.run("UPDATE TABLE_NAME SET id = CONCAT('q', id) WHERE id = '50'", db=slow)
    table.run("DELETE FROM TABLE_NAME WHERE id = '150'", db=quick)
    quick.commit()
    slow.commit()


def test_contents_are_one_state_while_others_write(mysql_url):
    columns = f"shop {TEXT}, id INT, seen TEXT, UNIQUE (id, shop)"
    with closing(Table(mysql_url, columns)) as table:
        table.key = ("shop", "id")
        table.run("INSERT INTO TABLE_NAME SELECT seq % 7, seq, '' FROM seq_1_to_10000")
        store = table.store()
        before, (position, parts) = table.keys(store), store.contents()
        found = next(parts)
        table.run("DELETE FROM TABLE_NAME WHERE id % 3 = 0")
        table.run("INSERT INTO TABLE_NAME VALUES ('new', 20000, ''), ('', 0, ''), (NULL, 1, '')")
        found += [key for part in parts for key in part]
        assert len(found) == len(before)
        assert set(found) == before
        changes = store.changes(position)
        assert before.union(changes.added).difference(changes.removed) == table.keys(store)
