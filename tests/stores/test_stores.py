"""Each store implements the protocol; tested on a real server where there is one."""

import datetime
import itertools
import os
import threading
from decimal import Decimal

import pytest
from servers import postgres_url, redis_url  # noqa: F401
from sources import written_through
from stand_in import Prefixes

import tamis
from tamis import stores
from tamis.testing import STORE_CHECKS, StoreCase, check_store

KINDS = ["Memory", "Loader", "SQLite", "RocksDB", "Redis", "Postgres"]
_names = itertools.count()


@pytest.fixture(params=KINDS)
def opened(request, tmp_path):
    """A function that opens the same store again, as another process would."""
    kind = request.param
    if kind == "Memory":
        store = stores.Memory()
        return lambda: store
    if kind == "Loader":
        store = written_through({})
        return lambda: store
    if kind == "SQLite":
        return lambda: stores.SQLite(tmp_path / "data.db")
    if kind == "RocksDB":
        pytest.importorskip("rocksdict")
        return lambda: stores.RocksDB(tmp_path / "data")
    if kind == "Redis":
        url, name = request.getfixturevalue("redis_url"), f"test {next(_names)}"
        return lambda: stores.Redis(url, name=name, grace=0)
    import psycopg

    url = request.getfixturevalue("postgres_url")
    schema = f"test{next(_names)}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {schema}")
    return lambda: stores.Postgres(f"{url} options='-c search_path={schema}'")


def telescoping():
    return tamis.Telescoping(capacity=1000, fpr=2**-4)


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
def test_contract(check, opened, request):
    kind = request.node.callspec.params["opened"]
    check(StoreCase(opened, exclusive=kind == "RocksDB"))


class Forgetful(stores.Memory):
    """Keeps the first value of a key for ever."""

    def put_many(self, keys, values, owner, since=""):
        had = self.get_many(keys)
        values = [old or new for old, new in zip(had, values, strict=True)]
        return super().put_many(keys, values, owner, since)


class Cut(stores.Memory):
    """Returns the first batch of its keys only."""

    def contents(self):
        position, parts = super().contents()
        return position, iter(list(parts)[:1])


class Everlasting(stores.Memory):
    """Grants a lease that ends only when it is released."""

    def lease(self, owner, seconds):
        return super().lease(owner, 3600)


class ShortKeys(stores.Memory):
    """Cuts keys off, as a column of a fixed length does."""

    def get_many(self, keys):
        return super().get_many([cut(key, 255) for key in keys])

    def put_many(self, keys, values, owner, since=""):
        return super().put_many([cut(key, 255) for key in keys], values, owner, since)

    def delete_many(self, keys, owner, since=""):
        return super().delete_many([cut(key, 255) for key in keys], owner, since)


class ShortValues(stores.Memory):
    """Cuts values off."""

    def put_many(self, keys, values, owner, since=""):
        return super().put_many(keys, [cut(value, 65_535) for value in values], owner, since)


def cut(text, length):
    return text if isinstance(text, int) else text[:length]


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (Forgetful, "keys_and_values_come_back"),
        (ShortKeys, "long_keys_and_values_come_back"),
        (ShortValues, "long_keys_and_values_come_back"),
        (Cut, "contents_are_complete"),
        (Everlasting, "a_lease_expires"),
    ],
)
def test_a_store_that_breaks_the_contract_is_named(cls, check, monkeypatch):
    monkeypatch.setattr("tamis.testing.stores.EXPIRY", 1.0)
    opened = {}
    with pytest.raises(AssertionError) as raised:
        check_store(lambda name: opened.setdefault(name, cls()))
    assert f"failed the check {check}" in raised.value.__notes__[-1]


def test_adapts_in_front_of_every_store(opened, monkeypatch):
    monkeypatch.setattr(tamis.guard.opening, "from_bytes", lambda data, key=None: Prefixes())
    with tamis.Guard(opened(), Prefixes()) as g:
        g.put_many((i, str(i)) for i in range(40))
        for _ in range(6):
            g.get_many(range(1000, 1200))
        wasted = g.stats.false_positives
        g.get_many(range(1000, 1200))
        assert g.stats.false_positives == wasted > 0
        assert g.get_many(range(40)) == [str(i) for i in range(40)]


# Postgres in place.


@pytest.fixture
def table(postgres_url):  # noqa: F811
    import psycopg

    name = f"users {next(_names)}"
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f'CREATE TABLE "{name}" (id text PRIMARY KEY, born text, n real UNIQUE)')
        db.execute(f"""INSERT INTO "{name}" SELECT 'u' || i, i FROM generate_series(0, 49) i""")
        yield postgres_url, name, db


def in_place(table):
    return stores.Postgres(table[0], table=table[1], key="id", value="born")


def test_postgres_follows_other_writers(table):
    _, name, db = table
    with tamis.Guard(in_place(table), telescoping()) as g:
        assert g.get_many([f"u{i}" for i in range(50)]) == [str(i) for i in range(50)]
        db.execute(f"""INSERT INTO "{name}" VALUES ('ada', '1815')""")
        db.execute(f"""DELETE FROM "{name}" WHERE id = 'u0'""")
        db.execute(f"""UPDATE "{name}" SET id = 'renamed' WHERE id = 'u1'""")
        assert g.get_many(["ada", "u0", "u1", "renamed"]) == ["1815", None, None, "1"]
        g.put("grace", "1906")
        assert g.delete("u2")
        assert db.execute(f"""SELECT born FROM "{name}" WHERE id = 'grace'""").fetchone() == (
            "1906",
        )
        assert len(g.store.run(0, 2**64 - 1)) == 50
        assert (g.stats.rebuilds, g.stats.passed) == (1, 0)
        db.execute(f'TRUNCATE "{name}"')
        db.execute(f"""INSERT INTO "{name}" VALUES ('last', 'one')""")
        assert g.get_many(["last", "ada"]) == ["one", None]
        g.rebuild()
        assert len(g.filter) == len(g.store.run(0, 2**64 - 1)) == 1


def test_postgres_misses_no_late_commit(table):
    """A row that is written first but committed last is not missed between two reads."""
    import psycopg

    url, name, db = table
    with tamis.Guard(in_place(table), telescoping()) as g, psycopg.connect(url) as slow:
        slow.execute(f"""INSERT INTO "{name}" VALUES ('slow', 'x')""")
        db.execute(f"""INSERT INTO "{name}" VALUES ('fast', 'y')""")
        assert g.get_many(["slow", "fast"]) == [None, "y"]
        slow.commit()
        assert g.get_many(["slow", "fast"]) == ["x", "y"]
        assert len(g.filter) == 52


def test_postgres_refuses_what_it_cannot_guard(table):
    url, name, _ = table
    for arguments, says in (
        ({"table": name}, "pass all of table, key and value"),
        ({"table": "x", "key": "id", "value": "born"}, "must be a table of the database, not 'x'"),
        ({"table": name, "key": "x", "value": "born"}, "must be a column of"),
        ({"table": name, "key": "born", "value": "id"}, "a unique index of its own"),
        ({"table": name, "key": "n", "value": "id"}, "of type real"),
    ):
        with pytest.raises(ValueError, match=says):
            stores.Postgres(url, **arguments)
    with tamis.Guard(in_place(table), telescoping()) as g:
        for call in (g.get, g.maybe, g.delete, lambda key: g.put(key, "x")):
            for key in (5, ("a", "b"), Decimal("1.5"), datetime.date(2024, 1, 1)):
                with pytest.raises(TypeError, match=r"'\w+', of type text, must be text, not "):
                    call(key)
        with pytest.raises(TypeError, match="must be text, not 5"):
            g.get_many(["a", 5])


# Folders that are no database.


@pytest.mark.parametrize("kind", [stores.SQLite, stores.Redis, stores.Postgres])
def test_a_time_out_must_be_positive(kind):
    pytest.importorskip({"Redis": "redis", "Postgres": "psycopg"}.get(kind.__name__, "sqlite3"))
    for timeout in (0, -1.0):
        with pytest.raises(ValueError, match=r"timeout must be a number of seconds above 0"):
            kind("redis://" if kind is stores.Redis else "", timeout=timeout)


def test_errors_of_rocksdb_are_store_errors(tmp_path):
    pytest.importorskip("rocksdict")
    store = stores.RocksDB(tmp_path / "data")
    for write in (lambda: store.put_many([1], ["x"], "one"), lambda: store.delete_many([1], "one")):
        with pytest.raises(tamis.LeaseError, match="does not hold the store's lease"):
            write()
    store.lease("one", 10)
    store.attach("one", lambda keys: tamis.hash_keys(keys, seed=1), b"seed 1")
    store.put_many([1], ["x"], "one")
    store.close()
    for call in (
        lambda: store.get_many([1]),
        lambda: store.put_many([1], ["x"], "one"),
        lambda: store.delete_many([1], "one"),
        lambda: store.run(0, 5),
        lambda: list(store.scan()),
        lambda: list(store.contents()[1]),
        lambda: store.metadata("x"),
        lambda: store.attach("one", lambda keys: tamis.hash_keys(keys, seed=2), b"seed 2"),
    ):
        with pytest.raises(tamis.StoreError, match=r"RocksDB database .*data' failed: ") as raised:
            call()
        assert raised.value.__cause__ is not None


def test_rocksdb_is_closed_while_others_read(tmp_path):
    """The driver refuses to close a database that another thread is reading from."""
    pytest.importorskip("rocksdict")
    keys = list(range(20_000))

    def read(store, begun, errors):
        try:
            while True:
                begun.set()
                store.get_many(keys)
        except tamis.StoreError as error:
            errors.append(error)

    for _ in range(5):
        store = stores.RocksDB(tmp_path / "data")
        errors = []
        threads = []
        for _ in range(3):
            begun = threading.Event()
            threads.append(threading.Thread(target=read, args=(store, begun, errors)))
            threads[-1].start()
            assert begun.wait(20)
        store.close()
        store.close()
        for thread in threads:
            thread.join()
        assert len(errors) == 3
    stores.RocksDB(tmp_path / "data").close()


def test_a_new_folder_of_rocksdb_is_private(tmp_path):
    pytest.importorskip("rocksdict")
    store = stores.RocksDB(tmp_path / "new")
    store.close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_rocksdb_names_what_it_cannot_open(tmp_path):
    pytest.importorskip("rocksdict")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="path must be a folder, not the file"):
        stores.RocksDB(tmp_path / "file")
    store = stores.RocksDB(tmp_path / "data", sync=True)
    with pytest.raises(tamis.StoreError, match="only one process at a time"):
        stores.RocksDB(tmp_path / "data")
    with tamis.Guard(store, telescoping()) as g:
        g.put("a", "x")
        child = os.fork()
        if child == 0:
            try:
                store.get_many([b"a"])
            except tamis.StoreError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert g.get("a") == "x"
    with tamis.Guard(stores.RocksDB(tmp_path / "data"), telescoping()) as g:
        assert g.get("a") == "x"


@pytest.mark.parametrize("opened", KINDS, indirect=True)
def test_keys_that_nobody_reads_hold_no_connection(opened):
    """The test fails by a warning about a connection that was not closed."""
    store = opened()
    parts = store.contents()[1]
    if hasattr(parts, "close"):
        parts.close()
    store.close()
