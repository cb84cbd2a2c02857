"""PostgreSQL tables that others write: how a follower notices what it could miss."""

import time
from contextlib import closing, contextmanager, suppress

import pytest
from followed import Table, read
from servers import postgres_server, postgres_url  # noqa: F401

import tamis
from tamis.stores.postgres import follower


@pytest.fixture
def table(postgres_url):  # noqa: F811
    with closing(Table(postgres_url)) as table:
        yield table


@contextmanager
def at_once(monkeypatch):
    """Let nobody be waited for longer than a moment."""
    with monkeypatch.context() as patch:
        patch.setattr(follower.Follower, "_deadline", lambda self: time.monotonic() + 0.05)
        yield


# Activation.


@pytest.mark.parametrize("prepared", [False, True])
def test_a_writer_that_found_no_guard_active_is_waited_for(table, monkeypatch, prepared):
    store = table.store()
    with table.connect() as writer:
        writer.execute("BEGIN; INSERT INTO t VALUES ('late', '')")
        if prepared:
            writer.execute("PREPARE TRANSACTION 'late'")
        with at_once(monkeypatch), pytest.raises(tamis.StoreError, match="must end first"):
            store.contents()
        writer.execute("COMMIT PREPARED 'late'" if prepared else "COMMIT")
    assert read(store)[1] == {b"a", b"b", b"late"}


def test_a_writer_that_is_counted_late_is_not_overlooked(table, monkeypatch):
    """It found no guard active, but was interrupted before it could count its statement."""
    store = table.store()
    table("INSERT INTO t VALUES ('c', '')")
    read(store)
    table("SELECT setval('tamis_t_until', 0)")
    with table.connect() as writer:
        writer.execute("BEGIN; INSERT INTO t VALUES ('late', '')")
        table("SELECT setval('tamis_t_skipped', 0)")
        await_writers, run_script = follower.Follower._await_writers, follower.run_script

        def count_before_the_check(db, *statements):
            if any("_changes" in each for each in statements):
                table("SELECT setval('tamis_t_skipped', 1)")
            return run_script(db, *statements)

        def end_and_await_writers(self, db):
            writer.execute("COMMIT")
            await_writers(self, db)

        with monkeypatch.context() as patch:
            patch.setattr(follower, "run_script", count_before_the_check)
            patch.setattr(follower.Follower, "_await_writers", end_and_await_writers)
            position, keys = read(store)
        writer.execute("COMMIT")
    assert b"late" in keys or store.changes(position) is None


def test_a_writer_with_an_old_snapshot_sees_that_a_guard_is_active(table):
    with table.connect() as writer:
        writer.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM t")
        store = table.store()
        position, _ = read(store)
        writer.execute("INSERT INTO t VALUES ('c', '')")
        assert store.changes(position)[1:] == ([], [], False)
        writer.execute("COMMIT")
    assert store.changes(position).added == [b"c"]


def test_without_an_active_guard_nothing_is_logged_and_that_is_noticed(table):
    store = table.store()
    position, _ = read(store)
    table("SELECT setval('tamis_t_until', 0)")
    table("INSERT INTO t VALUES ('c', '')")
    assert table("SELECT * FROM tamis_t_journal0") == []
    assert store.changes(position) is None
    position, keys = read(store)
    assert keys == {b"a", b"b", b"c"}
    table("DELETE FROM t WHERE k = 'c'")
    assert store.changes(position).removed == [b"c"]


# The journal.


def test_a_journal_is_truncated_once_all_followers_have_seen_it(table, monkeypatch):
    monkeypatch.setattr(follower, "_FULL", 8192)
    monkeypatch.setattr(follower, "RENEW", 0.0)
    one, two = table.store(), table.store()
    slow, _ = read(one)
    position, _ = read(two)
    sizes = " + ".join(f"pg_relation_size('tamis_t_journal{i}')" for i in range(3))

    def write(*followers):
        for i in range(20):
            table(f"INSERT INTO t SELECT 'n{i} ' || g, '' FROM generate_series(1, 400) AS g")
            table("DELETE FROM t WHERE k LIKE 'n%'")
            for store in followers:
                positions[store] = store.changes(positions[store]).position
        return table(f"SELECT {sizes}")[0][0]

    positions = {one: slow, two: position}
    table("INSERT INTO t VALUES ('c', '')")
    kept = write(two)
    changes = one.changes(slow)
    assert (changes.added, changes.removed) == ([b"c"], [])
    positions[one] = changes.position
    assert write(one, two) < kept
    table("DELETE FROM tamis_t_followers")  # as if all had expired
    write(two)
    assert one.changes(slow) is None


def test_a_writer_of_the_oldest_journal_is_not_waited_for(table, monkeypatch):
    monkeypatch.setattr(follower, "_FULL", 8192)
    monkeypatch.setattr(follower, "RENEW", 0.0)
    store = table.store()
    position, _ = read(store)
    with table.connect() as writer:
        writer.execute("BEGIN; INSERT INTO t VALUES ('late', '')")
        for i in range(20):
            table(f"INSERT INTO t SELECT 'n{i} ' || g, '' FROM generate_series(1, 400) AS g")
            position = store.changes(position).position
        writer.execute("COMMIT")
    assert store.changes(position).added == [b"late"]


def test_changes_come_in_pieces(table):
    store = table.store()
    position, keys = read(store)
    table("INSERT INTO t SELECT g::text, '' FROM generate_series(1, 10) AS g")
    table("DELETE FROM t WHERE k IN ('a', 'b')")
    sizes = []
    while True:
        changes = store.changes(position, limit=5)
        keys = (keys | {*changes.added}) - {*changes.removed}
        sizes.append(len(changes.added) + len(changes.removed))
        position = changes.position
        if not changes.more:
            break
    assert sizes == [5, 5, 2]
    assert keys == {b"%d" % i for i in range(1, 11)}
    assert store.changes(position)[1:] == ([], [], False)


def test_the_last_piece_has_what_was_committed_before_it_was_asked_for(table):
    store = table.store()
    position, _ = read(store)
    table("INSERT INTO t SELECT g::text, '' FROM generate_series(1, 10) AS g")
    first = store.changes(position, limit=8)
    assert first.more
    missing = {b"%d" % i for i in range(1, 11)} - {*first.added}
    gone = min(missing)
    table(f"INSERT INTO t VALUES ('new', ''); DELETE FROM t WHERE k IN ('a', '{gone.decode()}')")
    for limit in (8, None):
        last = store.changes(first.position, limit)
        assert ({*last.added}, last.removed, last.more) == (
            (missing - {gone}) | {b"new"},
            [b"a"],
            False,
        )


def test_a_piece_can_be_continued_whoever_asks_meanwhile(table):
    store = table.store()
    position, _ = read(store)
    table("INSERT INTO t SELECT g::text, '' FROM generate_series(1, 10) AS g")
    pieces = [store.changes(position, limit=8) for _ in range(20)]
    assert {*store.changes(position).added} == {b"%d" % i for i in range(1, 11)}
    for piece in pieces:
        rest = store.changes(piece.position, limit=8)
        assert len({*piece.added, *rest.added}) == 10


# Crashes, copies, restarts.


def test_after_a_crash_nothing_is_known(postgres_server):  # noqa: F811
    with closing(Table(postgres_server.url)) as table:
        store = table.store()
        position, _ = read(store)
        assert store.changes(position) is not None
        table.db.close()
        postgres_server.restart()
        table.db = table.connect()

        def look():
            try:
                return [store.changes(position)]
            except tamis.StoreError:
                time.sleep(0.1)

        assert next(filter(None, (look() for _ in range(100)))) == [None]
        assert table("SELECT * FROM tamis_t_state") == []
        assert read(store)[1] == {b"a", b"b"}


def test_journal_rows_of_another_server_are_deleted(table):
    """A logical copy of a database has a journal with transactions that are not of its server."""
    store = table.store()
    before, _ = read(store)
    table("UPDATE tamis_t_state SET home = 'elsewhere'")
    table("INSERT INTO tamis_t_journal1 VALUES ('123456789', -1, '{a}'), ('3', 1, '{old}')")
    position, _ = read(store)
    assert table("SELECT keys FROM tamis_t_journal1") == [(["old"],)]
    assert store.changes(before) is None
    assert store.changes(position)[1:] == ([], [], False)


# Changes of the schema.


MIGRATIONS = [
    "ALTER TABLE t RENAME COLUMN k TO key",
    "ALTER TABLE t DROP COLUMN k",
    "ALTER TABLE t ALTER COLUMN k TYPE varchar(50)",
    "ALTER TABLE t ALTER COLUMN k TYPE bytea USING k::bytea",
    "DROP TABLE tamis_t_journal0",
    "DROP TABLE tamis_t_journal1, tamis_t_journal2, tamis_t_state",
    "DROP SEQUENCE tamis_t_until",
    "DROP SEQUENCE tamis_t_skipped, tamis_t_ring",
]


@pytest.mark.parametrize("migration", MIGRATIONS)
def test_no_statement_of_others_fails_because_of_the_triggers(table, migration):
    store = table.store()
    position, _ = read(store)
    with table.connect() as other:
        for db in (table.db, other):
            db.execute("INSERT INTO t VALUES (%s, '')", (f"before {id(db)}",))
            db.execute("UPDATE t SET v = 'x'")
        position = store.changes(position).position
        table(migration)
        for db in (table.db, other):
            key = "" if "DROP COLUMN" in migration else f"'after {id(db)}', "
            db.execute(f"INSERT INTO t VALUES ({key}'')")
            db.execute("UPDATE t SET v = 'y'")
            db.execute("DELETE FROM t WHERE v = 'nothing'")
            db.execute("DELETE FROM t")
    changes = None
    with suppress(tamis.StoreError):
        changes = store.changes(position)
    assert changes is None


def test_a_standby_is_refused_when_it_is_noticed(table):
    store = table.store()
    position = follower.Position.parse(read(store)[0])
    with pytest.raises(tamis.StoreError, match=r"is a standby.* connect to the primary"):
        store._followed._follower.to_changes(position, [(None, 0, f"{position}|t")])


def test_a_key_column_of_another_type_is_followed_again(table):
    store = table.store()
    position, _ = read(store)
    table("DELETE FROM t")
    table("ALTER TABLE t ALTER COLUMN k TYPE bigint USING 0")
    table("INSERT INTO t VALUES (5, 'five')")
    assert store.changes(position) is None
    position, keys = read(store)
    assert (keys, store.get_many([5, b"a"])) == ({5}, ["five", None])
    table("INSERT INTO t VALUES (6, 'six')")
    assert store.changes(position).added == [6]


def test_a_column_that_is_gone_is_named(table):
    store = table.store()
    position, _ = read(store)
    table("ALTER TABLE t RENAME COLUMN k TO name")
    assert store.changes(position) is None
    with pytest.raises(tamis.StoreError, match="key must be a column of 't'"):
        store.contents()


def test_triggers_that_were_disabled_in_between_are_noticed(table):
    store = table.store()
    position, _ = read(store)
    table("ALTER TABLE t DISABLE TRIGGER USER")
    table("INSERT INTO t VALUES ('c', '')")
    table("ALTER TABLE t ENABLE TRIGGER USER")
    assert store.changes(position) is None
    assert read(store)[1] == {b"a", b"b", b"c"}


def test_a_table_that_takes_the_name_is_followed(table):
    store = table.store()
    position, _ = read(store)
    table("CREATE TABLE copy (LIKE t INCLUDING ALL); INSERT INTO copy VALUES ('c', '')")
    table("ALTER TABLE t RENAME TO old; ALTER TABLE copy RENAME TO t")
    assert store.changes(position) is None
    position, keys = read(store)
    table("INSERT INTO old VALUES ('d', ''); INSERT INTO t VALUES ('e', '')")
    assert (keys, store.changes(position).added) == ({b"c"}, [b"e"])


def test_unique_indexes_are_needed_all_the_time(table):
    store = table.store()
    position, _ = read(store)
    table("ALTER TABLE t DROP CONSTRAINT t_pkey")
    assert store.changes(position) is None
    with pytest.raises(tamis.StoreError, match="unique index"):
        store.contents()


def test_partitions_that_come_and_go_are_noticed(table):
    table("DROP TABLE t; CREATE TABLE t (k text PRIMARY KEY, v text) PARTITION BY RANGE (k)")
    table("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM ('a') TO ('m')")
    store = table.store()
    position, _ = read(store)
    table("CREATE TABLE t2 PARTITION OF t FOR VALUES FROM ('m') TO ('z')")
    table("INSERT INTO t2 VALUES ('n', '')")
    assert store.changes(position) is None
    position, keys = read(store)
    assert keys == {b"n"}
    table("INSERT INTO t2 VALUES ('o', ''); INSERT INTO t VALUES ('b', '')")
    table("UPDATE t SET k = 'c' WHERE k = 'o'")  # moves to another partition
    changes = store.changes(position)
    assert (sorted(changes.added), changes.removed) == ([b"b", b"c"], [])
    table("ALTER TABLE t DETACH PARTITION t2")
    table("INSERT INTO t1 VALUES ('d', '')")
    assert store.changes(changes.position) is None
    position, keys = read(store)
    assert keys == {b"b", b"c", b"d"}
    table("INSERT INTO t2 VALUES ('d', ''); DELETE FROM t2")  # no longer of this table
    assert store.changes(position)[1:] == ([], [], False)
