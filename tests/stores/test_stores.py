"""Each store implements the protocol; tested on a real server where there is one."""

import itertools
import os
import threading

import numpy as np
import pytest
from servers import postgres_url, redis_url  # noqa: F401
from stand_in import Prefixes

import tamis
from tamis import stores

KINDS = ["Memory", "SQLite", "RocksDB", "Redis", "Postgres"]
_names = itertools.count()


@pytest.fixture(params=KINDS)
def opened(request, tmp_path):
    """A function that opens the same store again, as another process would."""
    kind = request.param
    if kind == "Memory":
        store = stores.Memory()
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


def quotient():
    return tamis.Quotient(capacity=1000, fpr=2**-4)


KEYS = ["text", "é", "", b"\0\xff", 0, -1, 2**63, 2**64 - 1, -(2**63), "1", 1]


def test_keys_and_values_come_back(opened):
    with tamis.Guard(opened(), quotient()) as g:
        g.put_many((key, f"value of {key!r}") for key in KEYS)
        g.put("bytes", b"\0\xff")
        g.put("empty", b"")
        g.put("nothing", "")
        assert g.get_many(KEYS) == [f"value of {key!r}" for key in KEYS]
        assert g.get_many(["bytes", "empty", "nothing"]) == [b"\0\xff", b"", ""]
        assert {k for k in g if isinstance(k, int)} == {k for k in KEYS if isinstance(k, int)}
        assert len(list(g)) == len(KEYS) + 3
        g.put("bytes", "again")
        assert g.get("bytes") == "again"
        assert g.delete_many(["bytes", "absent", -1]) == [True, False, True]
        assert g.get_many(["bytes", -1, 0]) == [None, None, "value of 0"]


def test_the_index_holds_the_hash_of_every_key(opened):
    f = tamis.Quotient(capacity=10_000, fpr=0.1, seed=9)
    with tamis.Guard(opened(), f) as g:
        g.put_many((i, "x") for i in range(6000))
        g.delete_many(range(1000))
        g.put_many((i, "y") for i in range(500, 2000))
        expected = tamis.hash_keys(range(500, 6000), seed=9)
        expected = expected[np.lexsort(expected.T[::-1])]
        everything = np.concatenate(list(g.store.scan()))
        assert (everything[np.lexsort(everything.T[::-1])] == expected).all()
        words = expected[:, 0]
        for lo, hi in [
            (0, 2**64 - 1),
            (0, 0),
            (2**63 - 10, 2**63 + 2**58),
            (int(words[3]), int(words[9])),
            (int(words[9]), int(words[9])),
            (2**64 - 2**57, 2**64 - 1),
        ]:
            run = g.store.run(lo, hi)
            assert run.dtype == np.uint64
            within = expected[(words >= np.uint64(lo)) & (words <= np.uint64(hi))]
            assert (run[np.lexsort(run.T[::-1])] == within).all()


def test_another_seed_rebuilds_the_index(opened):
    for seed in (1, 2):
        f = tamis.Quotient(capacity=100, fpr=0.1, seed=seed)
        with tamis.Guard(opened(), f) as g:
            g.put_many((i, "x") for i in range(50))
            run = g.store.run(0, 2**64 - 1)
            expected = tamis.hash_keys(range(50), seed=seed)
            assert sorted(map(tuple, run.tolist())) == sorted(map(tuple, expected.tolist()))


def test_epochs_name_states_of_the_set(opened):
    with tamis.Guard(opened(), quotient()) as g:
        seen = [g.store.epoch()]
        for change, write in [
            (True, lambda: g.put(1, "x")),
            (False, lambda: g.put(1, "y")),
            (True, lambda: g.put_many({1: "z", 2: "z"})),
            (True, lambda: g.delete(1)),
            (False, lambda: g.delete(1)),
            (True, lambda: g.put(1, "x")),
        ]:
            write()
            epoch = g.store.epoch()
            assert (epoch not in seen) == change
            assert change or epoch == seen[-1]
            seen.append(epoch)
        assert g._trust.replica.epoch == epoch


def test_a_snapshot_outlives_the_process(opened, tmp_path):
    path = tmp_path / "filter"
    with tamis.Guard(opened(), quotient(), snapshot=path) as g:
        g.put_many((i, "x") for i in range(100))
    with tamis.Guard(opened(), quotient(), snapshot=path) as g:
        assert g.stats.rebuilds == 0
        assert g.get_many(range(100)) == ["x"] * 100
        g._trust.snapshot = None  # nothing is saved, as in a crash
        g.put(100, "y")
        g.delete(0)
    with tamis.Guard(opened(), quotient(), snapshot=path) as g:
        assert g.get_many([0, 1, 100]) == [None, "x", "y"]
        assert g.stats.passed == 0


def test_adapts_in_front_of_every_store(opened, monkeypatch):
    monkeypatch.setattr(tamis.guard.construction, "from_bytes", lambda data, key=None: Prefixes())
    with tamis.Guard(opened(), Prefixes()) as g:
        g.put_many((i, str(i)) for i in range(40))
        for _ in range(6):
            g.get_many(range(1000, 1200))
        wasted = g.stats.false_positives
        g.get_many(range(1000, 1200))
        assert g.stats.false_positives == wasted > 0
        assert g.get_many(range(40)) == [str(i) for i in range(40)]


# RocksDB allows only one process.
@pytest.mark.parametrize("opened", [k for k in KINDS if k != "RocksDB"], indirect=True)
def test_one_writer_at_a_time(opened):
    one = tamis.Guard(opened(), quotient(), lease=60)
    two = tamis.Guard(opened(), quotient(), lease=60)
    one.put("a", "1")
    with pytest.raises(tamis.LeaseError):
        two.put("b", "2")
    with pytest.raises(tamis.LeaseError):
        two.store.put_many([b"b"], ["2"], two._trust.owner)
    assert two.get_many(["a", "b"]) == ["1", None]
    one.close()
    two.put("b", "2")
    assert two.get_many(["a", "b"]) == ["1", "2"]
    two.close()


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
    with tamis.Guard(in_place(table), quotient()) as g:
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
    with tamis.Guard(in_place(table), quotient()) as g, psycopg.connect(url) as slow:
        slow.execute(f"""INSERT INTO "{name}" VALUES ('slow', 'x')""")
        other = threading.Thread(
            target=db.execute, args=(f"""INSERT INTO "{name}" VALUES ('fast', 'y')""",)
        )
        other.start()
        assert g.get_many(["slow", "fast"]) == [None, None]
        slow.commit()
        other.join()
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
    with tamis.Guard(in_place(table), quotient()) as g:
        assert g.get(5) is None
        with pytest.raises(TypeError, match="cannot hold the key"):
            g.put(5, "x")


# What a guard follows a store by.


def test_a_token_changes_with_the_set_of_keys(opened):
    with tamis.Guard(opened(), quotient()) as g:
        tokens = [g.store.change_token()]
        assert g.store.change_token() == tokens[0]
        for i in range(3):
            g.put(i, "x")
            assert g.store.change_token() not in tokens
            tokens.append(g.store.change_token())


def test_runs_are_read_together(opened):
    with tamis.Guard(opened(), quotient()) as g:
        g.put_many((i, "x") for i in range(100))
        ranges = [(0, 2**62), (5, 5), (2**63, 2**64 - 1)]
        for run, (lo, hi) in zip(g.store.runs(ranges), ranges, strict=True):
            assert run.tolist() == g.store.run(lo, hi).tolist()
        assert g.store.runs([]) == []


@pytest.mark.parametrize("opened", ["SQLite", "Postgres"], indirect=True)
def test_changes_come_in_pieces(opened):
    with tamis.Guard(opened(), quotient()) as g:
        since = g.store.epoch()
        for start in range(0, 10, 2):
            g.put_many((i, "x") for i in range(start, start + 2))
        g.delete_many([3, 4])
        added, removed, pieces = [], [], 0
        while True:
            changes = g.store.changes(since, limit=5)
            # The keys of a commit may come together.
            assert len(changes.added) + len(changes.removed) <= 6
            added += changes.added
            removed += changes.removed
            since, pieces = changes.epoch, pieces + 1
            if not changes.more:
                break
        assert (sorted(added), removed, since) == ([*range(10)], [3, 4], g.store.epoch())
        assert pieces in (2, 3)


# Writes before a guard has attached, and folders that are no database.


@pytest.mark.parametrize("opened", KINDS, indirect=True)
def test_a_write_before_attach_is_a_lease_error(opened):
    store = opened()
    assert store.lease("one", 60)
    with pytest.raises(tamis.LeaseError, match="call attach before the first write"):
        store.put_many([1], ["x"], "one")
    with pytest.raises(tamis.LeaseError, match="call attach before the first write"):
        store.delete_many([1], "one")
    assert store.get_many([1]) == [None]
    with pytest.raises(tamis.LeaseError):
        store.attach("two", lambda keys: tamis.hash_keys(keys, seed=1), b"1")
    store.release("one")
    store.close()


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
        with pytest.raises(tamis.LeaseError, match="call attach before the first write"):
            write()
        store.release("one")
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


def test_rocksdb_names_what_it_cannot_open(tmp_path):
    pytest.importorskip("rocksdict")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="path must be a folder, not the file"):
        stores.RocksDB(tmp_path / "file")
    store = stores.RocksDB(tmp_path / "data", sync=True)
    with pytest.raises(tamis.StoreError, match="only one process at a time"):
        stores.RocksDB(tmp_path / "data")
    with tamis.Guard(store, quotient()) as g:
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
    with tamis.Guard(stores.RocksDB(tmp_path / "data"), quotient()) as g:
        assert g.get("a") == "x"


@pytest.mark.parametrize("opened", KINDS, indirect=True)
def test_keys_that_nobody_reads_hold_no_connection(opened):
    """The test fails by a warning about a connection that was not closed."""
    store = opened()
    parts = store.contents()[1]
    if hasattr(parts, "close"):
        parts.close()
    store.close()
