"""Connections that break, strangers that keep a transaction open, and leases without a clock."""

import itertools
import os
import socket
import threading
import time
from contextlib import closing

import pytest
from positions import position
from servers import postgres_server, postgres_url  # noqa: F401

import tamis
from tamis import stores

_names = itertools.count()


def telescoping():
    return tamis.Telescoping(capacity=1000, fpr=2**-4)


def hasher(keys):
    return tamis.hash_keys(keys, seed=1)


class Table:
    """A table that others write to as well."""

    def __init__(self, url, db):
        self.url, self.db, self.name = url, db, f"visits {next(_names)}"
        self.stores = []
        db.execute(f'CREATE TABLE "{self.name}" (id text PRIMARY KEY, seen text)')

    def insert(self, *keys):
        self.on(self.db, *keys)

    def on(self, db, *keys):
        for key in keys:
            db.execute(f'INSERT INTO "{self.name}" VALUES (%s, %s)', (key, f"by {key}"))

    def store(self, **options):
        store = stores.Postgres(self.url, table=self.name, key="id", value="seen", **options)
        self.stores.append(store)
        return store

    def close(self):
        for store in self.stores:
            store.close()


def connect(url, **options):
    import psycopg

    return psycopg.connect(url, **{"autocommit": True, **options})


@pytest.fixture
def table(postgres_url):  # noqa: F811
    with connect(postgres_url) as db, closing(Table(postgres_url, db)) as table:
        yield table


@pytest.fixture
def lost(postgres_server):  # noqa: F811
    """A table of a server that the test stops and starts."""
    with (
        connect(postgres_server.url) as db,
        closing(Table(postgres_server.url, db)) as table,
    ):
        yield postgres_server, table


def writer(store, owner="one", seconds=60.0):
    assert store.lease(owner, seconds)
    store.attach(owner, hasher, b"1")
    return store


def until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("did not happen within 30 s")


def waiting(db):
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    return db.execute(query).fetchone()[0]


def drop_connections(db):
    db.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )


def test_dropped_connections_are_opened_again(table):
    with tamis.Guard(table.store(), telescoping()) as g:
        g.put("a", "1")
        drop_connections(table.db)
        assert g.get("a") == "1"
        drop_connections(table.db)
        g.put("b", "2")
        drop_connections(table.db)
        table.insert("c")
        assert g.get_many(["a", "b", "c"]) == ["1", "2", "by c"]
        assert g.delete("a")


def test_a_server_that_is_down_is_a_store_error(lost):
    server, table = lost
    store = writer(table.store(timeout=2))
    since = position(store)
    store.put_many([b"a"], ["x"], "one", since)
    server.stop()
    for call in (
        lambda: store.get_many([b"a"]),
        lambda: store.put_many([b"b"], ["x"], "one", since),
        lambda: store.delete_many([b"a"], "one", since),
        lambda: store.lease("one", 10),
        lambda: store.release("one"),
        lambda: store.changes(since),
        lambda: store.run(0, 5),
        lambda: list(store.scan()),
        lambda: store.metadata("x"),
        lambda: list(store.contents()[1]),
        lambda: store.attach("one", hasher, b"1"),
        lambda: stores.Postgres(f"{server.url} password=secret-word", timeout=2),
    ):
        with pytest.raises(tamis.StoreError, match=r"Postgres at 127\.0\.0\.1:") as raised:
            call()
        assert isinstance(raised.value, OSError)
        assert "secret" not in str(raised.value)
    server.start()

    def answers():
        try:
            return store.get_many([b"a"]) == ["x"]
        except tamis.StoreError:
            return False

    until(answers)
    assert store.changes(since) is None  # commits may have been lost
    since = position(store)
    store.put_many([b"b"], ["y"], "one", since)
    assert store.changes(since).added == [b"b"]


def test_a_wrong_connection_string_shows_no_password():
    for wrong in ("postgres:/user:secret-word@host", "postgresql://user:secret-word@[host/db"):
        with pytest.raises(ValueError, match="conninfo must be") as raised:
            stores.Postgres(wrong)
        assert "secret" not in str(raised.value)
        assert raised.value.__cause__ is None


def test_a_server_that_does_not_answer_is_a_store_error(lost):
    server, table = lost
    port = int(dict(part.split("=") for part in server.url.split())["port"])
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        # The connection is made, and then nothing comes through any more.
        silent = server.url.replace(f"port={port}", f"port={proxy.getsockname()[1]}")
        links = []

        def forward():
            client, _ = proxy.accept()
            there = socket.create_connection(("127.0.0.1", port))
            links.extend((client, there))
            for one, other in ((client, there), (there, client)):
                threading.Thread(target=pump, args=(one, other), daemon=True).start()

        passing = threading.Event()
        passing.set()

        def pump(one, other):
            try:
                while data := one.recv(65536):
                    if passing.is_set():
                        other.sendall(data)
            except OSError:
                pass

        threading.Thread(target=forward, daemon=True).start()
        store = stores.Postgres(
            silent, table=table.name, key="id", value="seen", timeout=2, connections=2
        )
        assert store.get_many([b"a"]) == [None]
        passing.clear()
        with pytest.raises(tamis.StoreError):
            store.get_many([b"a"])
        for link in links:
            link.close()
        store.close()


def test_a_put_waits_for_a_strangers_row_and_nothing_else_does(table):
    table.insert("theirs")
    store = writer(table.store())
    since = position(store)
    with connect(table.url, autocommit=False) as stranger:
        table.on(stranger, "other")
        stranger.execute(f"""UPDATE "{table.name}" SET seen = 'x'""")
        store.put_many([b"mine"], ["x"], "one", since)
        assert store.changes(since).added == [b"mine"]
        put = threading.Thread(target=store.put_many, args=([b"theirs"], ["y"], "one", since))
        put.start()
        until(lambda: waiting(table.db) == 1)
        assert store.changes(since).added == [b"mine"]
        assert store.get_many([b"theirs", b"other"]) == ["by theirs", None]
        assert store.lease("one", 10)
        assert len(store.run(0, 2**64 - 1)) == 2
        assert waiting(table.db) == 1
        stranger.commit()
        put.join()
    assert sorted(store.changes(since).added) == [b"mine", b"other"]


def test_threads_read_at_the_same_time(table):
    table.insert("a")
    store = table.store(connections=8)
    with connect(table.url, autocommit=False) as stranger:
        stranger.execute(f'LOCK TABLE "{table.name}"')
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(store.get_many([b"a"]))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        until(lambda: waiting(table.db) == 8)
        stranger.commit()
        for thread in threads:
            thread.join()
    assert found == [["by a"]] * 8


def test_signals_of_changes_and_of_a_new_connection(lost):
    server, table = lost
    store = stores.Postgres(server.url)
    table.stores.append(store)
    before = set(threading.enumerate())  # perhaps of guards that other tests left open
    woken = threading.Event()
    end = store.watch(woken.set)
    assert woken.wait(30)  # it listens
    woken.clear()
    table.db.execute("INSERT INTO tamis VALUES ('ba', 'b')")
    assert woken.wait(30)
    woken.clear()
    server.restart()
    assert woken.wait(30)
    end()
    begun = set(threading.enumerate()) - before
    assert not any(t.name == "tamis-postgres-watch" for t in begun)
    table.db.close()


def test_a_lease_is_over_when_it_was_watched_for_its_length(table, monkeypatch):
    at = [1000.0]
    monkeypatch.setattr(time, "clock_gettime", lambda _: at[0])
    one, two = table.store(), table.store()
    assert one.lease("one", 10)
    assert not two.lease("two", 5)
    at[0] += 9
    assert one.lease("one", 10)
    at[0] += 9
    assert not two.lease("two", 5)  # the renewal began the watch again
    at[0] += 9.9
    assert not two.lease("two", 5)
    at[0] += 0.3
    assert two.lease("two", 5)
    assert not one.lease("one", 10)
    two.release("two")
    assert one.lease("one", 10)


def test_the_journal_of_an_own_table_is_trimmed(table, monkeypatch):
    monkeypatch.setattr(stores.postgres.tables, "JOURNAL", 2000)
    schema = f"own{next(_names)}"
    table.db.execute(f"CREATE SCHEMA {schema}")
    table.stores.append(stores.Postgres(f"{table.url} options='-c search_path={schema}'"))
    for i in range(5):
        table.db.execute(
            f"INSERT INTO {schema}.tamis SELECT convert_to('bk{i}' || j, 'UTF8'), 'b' "
            "FROM generate_series(1, 1000) j"
        )
    rows = table.db.execute(f"SELECT count(*) FROM {schema}.tamis_tamis_journal").fetchone()
    assert 2000 <= rows[0] <= 3000


def test_tables_and_triggers_have_the_documented_names(table):
    store = table.store()
    parts = ("journal0", "journal1", "journal2", "state", "followers", "meta")
    names = {f"tamis_{table.name}_{part}" for part in parts}
    found = table.db.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE %s",
        (f"tamis\\_{table.name}\\_%",),
    )
    assert {name for (name,) in found} == names
    triggers = table.db.execute(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass", (f'"{table.name}"',)
    )
    assert {name for (name,) in triggers} == {
        f"tamis_{table.name}_{part}"
        for part in ("insert", "delete", "update", "truncate", "replica")
    }
    store.unguard()
    left = table.db.execute("SELECT 1 FROM pg_class WHERE relname = ANY(%s)", (list(names),))
    assert left.fetchone() is None
    table.insert("after")
    with pytest.raises(ValueError, match="at most 44 bytes"):
        stores.Postgres(table.url, table="t" * 45, key="id", value="seen")


def test_a_stranger_needs_no_rights_on_the_tables_beside(table):
    role = f"stranger{next(_names)}"
    with tamis.Guard(table.store(), telescoping()) as g, connect(table.url) as stranger:
        table.db.execute(f"CREATE ROLE {role}")
        table.db.execute(f'GRANT INSERT ON "{table.name}" TO {role}')
        stranger.execute(f"SET ROLE {role}")
        stranger.execute("SET search_path = ''")
        stranger.execute(f"""INSERT INTO public."{table.name}" VALUES ('theirs', 'x')""")
        assert g.get("theirs") == "x"


def test_what_other_triggers_write_is_found(table):
    table.db.execute(
        f"""CREATE FUNCTION double{next(_names)}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.id NOT LIKE '%-copy' THEN
        INSERT INTO "{table.name}" VALUES (NEW.id || '-copy', NEW.seen); END IF;
        RETURN NULL; END $$;
        CREATE TRIGGER double AFTER INSERT ON "{table.name}"
        FOR EACH ROW EXECUTE FUNCTION double{next(_names) - 1}()"""
    )
    store = writer(table.store())
    since = position(store)
    store.put_many([b"a"], ["x"], "one", since)
    assert sorted(store.changes(since).added) == [b"a", b"a-copy"]
    assert len(store.run(0, 2**64 - 1)) == 2


def test_a_forked_child_opens_its_own_connections(table):
    store = writer(table.store())
    since = position(store)
    store.put_many([b"a"], ["x"], "one", since)
    child = os.fork()
    if child == 0:
        try:
            assert store.get_many([b"a"]) == ["x"]
            assert not store.lease("one", 60)
            assert store.changes(since).added == [b"a"]
            try:
                store.attach("one", hasher, b"1")
            except tamis.LeaseError:
                os._exit(0)
        finally:
            os._exit(1)
    for _ in range(200):
        assert store.get_many([b"a"]) == ["x"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.changes(since).added == [b"a"]


def test_close_leaves_no_connections_and_no_threads(table):
    before = set(threading.enumerate())
    table.url += " application_name=closing"
    store = writer(table.store())
    threads = [threading.Thread(target=store.get_many, args=([b"a"],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'closing'"
    assert 1 <= table.db.execute(query).fetchone()[0] <= 8
    store.close()
    store.close()
    until(lambda: table.db.execute(query).fetchone()[0] == 0)
    assert set(threading.enumerate()) <= before
    with pytest.raises(ValueError, match="is closed"):
        store.get_many([b"a"])


def test_more_threads_than_connections_wait_for_their_turn(table):
    table.insert("a")
    store = table.store(connections=2, timeout=1)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(store.get_many([b"a"]))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["by a"]] * 20
    with store._reading(), store._reading(), pytest.raises(tamis.StoreError, match="connection"):
        store.get_many([b"a"])
    assert store.get_many([b"a"]) == ["by a"]


def test_a_connection_that_is_lost_while_it_rolls_back_is_a_store_error(table, monkeypatch):
    import psycopg

    def lost(db, *_):
        db.pgconn.finish()
        raise psycopg.Rollback

    store = table.store()
    with monkeypatch.context() as patch:
        patch.setattr("tamis.stores.postgres.tables._replace", lost)
        with pytest.raises(tamis.StoreError, match="Postgres at 127"):
            store.lease("one", 10)
    assert store.lease("one", 10)
