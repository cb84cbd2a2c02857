"""The guard for asyncio: the tests of `tamis.Guard`, and what is about tasks.

The tests of guards and stores run here once more, on a `tamis.AsyncGuard` behind an event loop.
"""

import asyncio
import contextlib
import itertools
import random
import threading
import time

import pytest
import test_guard
import test_guard_adaptation
import test_guard_failures
import test_guard_guest
import test_guard_reads
import test_guard_rebuilds
import test_guard_snapshots
import test_guard_tables
import test_stores
from blocking import BlockingGuard
from servers import postgres_url, redis_url  # noqa: F401
from test_guard_snapshots import clock  # noqa: F401
from test_guard_tables import table  # noqa: F401
from test_stores import opened  # noqa: F401

import tamis
from tamis import stores

LEFT_OUT = {
    # A put that is made inside another put: those of an AsyncGuard come one after another.
    "test_a_put_that_overtakes_an_answer_stops_the_adaptation",
    "test_a_put_that_ends_after_an_answer_stops_the_adaptation",
    "test_the_remote_lists_a_pending_put_once",
    "test_growth_keeps_the_slot_of_a_pending_put",
    # No guard in it.
    "test_runs_count_only_under_the_lease",
    "test_a_run_may_begin_in_the_region_before_and_end_in_the_one_after",
    # Of the follower, which knows no tasks.
    "test_the_follower_ends_with_its_guard",
    "test_the_follower_keeps_the_filter_level",
    # A loop does not survive a fork.
    "test_a_child_process_is_told_to_open_its_own_guard",
    # No guard in it, or one of its own.
    "test_a_time_out_must_be_positive",
    "test_rocksdb_names_what_it_cannot_open",
    "test_a_table_that_cannot_be_guarded_is_refused",
    "test_a_database_in_a_missing_folder_is_named",
    "test_a_gate_answers_until_its_deadline",
    "test_the_clock_of_gates_is_that_of_leases",
    "test_expected_rates_follow_every_change",
    "test_expected_rates_are_not_computed_all_the_time",
    # Of PostgreSQL in place, with a fixture of another table; see below.
    "test_postgres_follows_other_writers",
    "test_postgres_misses_no_late_commit",
    "test_postgres_refuses_what_it_cannot_guard",
}

MODULES = (
    test_guard,
    test_guard_adaptation,
    test_guard_failures,
    test_guard_guest,
    test_guard_reads,
    test_guard_rebuilds,
    test_guard_snapshots,
    test_guard_tables,
    test_stores,
)

for _module in MODULES:
    for _name, _test in vars(_module).items():
        if _name.startswith("test_") and _name not in LEFT_OUT:
            globals()[_name] = _test


@pytest.fixture(autouse=True)
def _asynchronous(monkeypatch):
    monkeypatch.setattr(tamis, "Guard", BlockingGuard)


def quotient(capacity=1000):
    return tamis.Quotient(capacity=capacity, fpr=2**-4, seed=2)


def asynchronous(test):
    """A test that is a coroutine."""

    def run(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 60))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__signature__ = __import__("inspect").signature(test)
    return run


def absent(f, count):
    return [key for key in itertools.islice((f"no {i}" for i in range(10**6)), 10 * count)
            if key not in f][:count]  # fmt: skip


# Task switches.


@asynchronous
async def test_a_no_needs_no_task_switch():
    async with tamis.AsyncGuard(stores.Memory(), quotient()) as g:
        await g.put_many((i, "x") for i in range(500))
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        before = turns
        for key in absent(g.filter, 200):
            assert await g.get(key) is None
        assert await g.get_many(absent(g.filter, 200)) == [None] * 200
        assert turns == before
        # And a coroutine that never waits ends with its first step.
        with pytest.raises(StopIteration) as ended:
            g.get(absent(g.filter, 1)[0]).send(None)
        assert ended.value.value is None
        assert await g.get(5) == "x"
        await asyncio.sleep(0)  # the other task does count
        assert turns > before
        counting.cancel()
        assert g.stats.reads_saved == 401


@asynchronous
async def test_tasks_wait_for_a_slow_store_at_the_same_time():
    arrived, release = threading.Semaphore(0), threading.Event()

    class Slow(stores.Memory):
        def get_many(self, keys):
            arrived.release()
            assert release.wait(30)
            return super().get_many(keys)

    store = Slow()
    release.set()
    async with tamis.AsyncGuard(store, quotient(), threads=4) as g:
        await g.put_many((i, str(i)) for i in range(100))
        release.clear()
        while arrived.acquire(blocking=False):
            pass
        tasks = [asyncio.create_task(g.get(i)) for i in range(4)]
        for _ in range(4):
            await asyncio.to_thread(arrived.acquire, timeout=30)
        assert await g.get(absent(g.filter, 1)[0]) is None  # the loop is free
        release.set()
        assert await asyncio.gather(*tasks) == ["0", "1", "2", "3"]


# Cancellation.


class Gated(stores.Memory):
    """A store whose writes stop inside, before and after the commit, until they are released."""

    def __init__(self):
        super().__init__()
        self.inside, self.go_on = threading.Semaphore(0), threading.Event()
        self.written = []
        self.fails = None

    def put_many(self, keys, values, owner, since):
        self.inside.release()
        assert self.go_on.wait(30)
        if self.fails is not None:
            raise self.fails
        done = super().put_many(keys, values, owner, since)
        self.written.append((list(keys), list(values)))
        return done


@asynchronous
async def test_a_write_that_has_begun_runs_to_its_end():
    store = Gated()
    async with tamis.AsyncGuard(store, quotient()) as g:
        first = asyncio.create_task(g.put("a", "1"))
        await asyncio.to_thread(store.inside.acquire)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await first
        # One that has not begun does not happen at all, and a later one comes later.
        second = asyncio.create_task(g.put("b", "2"))
        third = asyncio.create_task(g.put("a", "3"))
        await asyncio.sleep(0.05)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        store.go_on.set()
        await third
        assert store.written == [([b"a"], ["1"]), ([b"a"], ["3"])]
        assert await g.get_many(["a", "b"]) == ["3", None]
        assert "b" not in g.filter or g.stats.false_positives
        assert len(g.filter) == 1


@asynchronous
async def test_a_cancelled_write_of_unknown_outcome_is_settled(caplog):
    store = Gated()
    async with tamis.AsyncGuard(store, quotient(), name="users") as g:
        store.fails = tamis.StoreError("the connection broke")
        task = asyncio.create_task(g.put("a", "1"))
        await asyncio.to_thread(store.inside.acquire)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.go_on.set()
        for _ in range(600):
            if "users: a write failed after its task was cancelled" in caplog.text:
                break
            await asyncio.sleep(0.05)
        assert "the connection broke" in caplog.text
        assert b"a" in g.guard.driver.protocol.unsettled
        store.fails = None
        await g.put("b", "2")
        assert b"a" not in g.guard.driver.protocol.unsettled
        assert await g.get_many(["a", "b"]) == [None, "2"]
        assert len(g.filter) == 1


@asynchronous
async def test_close_waits_for_writes_that_have_begun():
    store = Gated()
    g = tamis.AsyncGuard(store, quotient())
    await g.open()
    writing = asyncio.create_task(g.put("a", "1"))
    await asyncio.to_thread(store.inside.acquire)
    closing = asyncio.create_task(g.close())
    await asyncio.sleep(0.05)
    closing.cancel()  # which stops nothing
    assert not writing.done()
    store.go_on.set()
    await writing
    await g.close()
    assert store.written == [([b"a"], ["1"])]
    assert store._lease.holder is None
    assert (g.closed, g.stats.queries) == (True, 0)
    for call in (g.get("a"), g.put("a", "1"), g.get_many(["a"]), g.open()):
        with pytest.raises(ValueError, match="the guard is closed"):
            await call
    await g.close()


@asynchronous
async def test_many_tasks_that_are_cancelled_leave_a_whole_guard():
    chance, store = random.Random(4), stores.Memory()
    async with tamis.AsyncGuard(store, quotient(5000)) as g:

        async def work(i):
            for _ in range(5):
                key, call = chance.randrange(60), chance.choice([g.put, g.delete, g.get])
                await (call(key, f"{i}") if call == g.put else call(key))

        tasks = [asyncio.create_task(work(i)) for i in range(100)]
        for task in tasks:
            await asyncio.sleep(0)
            if chance.random() < 0.5:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await g.put("last", "x")  # after all that were before it
        there = {key for part in store.contents()[1] for key in part}
        assert len(g.filter) == len(there)
        values = await g.get_many([*range(60), "last"])
        assert [v is not None for v in values] == [*(i in there for i in range(60)), True]


# Event loops.


@pytest.mark.parametrize("kind", ["memory", "redis", "postgres"])
def test_a_guard_belongs_to_one_event_loop(kind, request):
    """In another one it says so, and can be closed, so that it gives the lease back."""
    if kind == "memory":
        store = stores.Memory()
    elif kind == "redis":
        store = stores.Redis(request.getfixturevalue("redis_url"), name="loops", grace=0)
    else:
        store = stores.Postgres(request.getfixturevalue("postgres_url"))
    released = []
    release = store.release
    store.release = lambda owner: released.append(owner) or release(owner)
    g = tamis.AsyncGuard(store, quotient())

    async def fill():
        await g.put("there", "x")
        await g._reader.close() if g._reader else None  # no socket is left open

    asyncio.run(fill())
    for call in (lambda: g.get("there"), lambda: g.put("there", "y"), lambda: g.delete("there"),
                 lambda: g.get_many(["there"])):  # fmt: skip
        with pytest.raises(RuntimeError, match="opened in another event loop"):
            asyncio.run(call())
    assert not released
    asyncio.run(g.close())
    assert released
    asyncio.run(g.close())


@asynchronous
async def test_a_guard_whose_connections_fail_to_open_gives_the_lease_back():
    store, fails = stores.Memory(), [True]

    async def open_reader():
        if fails.pop():
            raise OSError("no more sockets")

    store.open_reader = open_reader
    g = tamis.AsyncGuard(store, quotient())
    with pytest.raises(OSError, match="no more sockets"):
        await g.put("a", "1")
    fails.append(False)
    await g.put("a", "1")
    assert await g.get("a") == "1"
    await g.close()


# Opening.


@asynchronous
async def test_the_first_call_opens_and_tasks_share_it():
    scans, begun, go_on = [], threading.Semaphore(0), threading.Event()

    class Counting(stores.Memory):
        def contents(self):
            scans.append(1)
            begun.release()
            assert go_on.wait(30)
            return super().contents()

    g = tamis.AsyncGuard(Counting(), quotient())
    with pytest.raises(ValueError, match="not open yet"):
        g.stats  # noqa: B018
    assert "not open yet" in repr(g)
    first = asyncio.create_task(g.get("a"))
    others = [asyncio.create_task(g.get("a")) for _ in range(5)]
    await asyncio.to_thread(begun.acquire, timeout=30)
    first.cancel()  # the others still get their guard
    go_on.set()
    assert await asyncio.gather(*others) == [None] * 5
    assert len(scans) == 1
    assert repr(g).startswith("<tamis.AsyncGuard: Quotient in front of Counting, 5 queries")
    await g.close()
    assert "closed" in repr(g)


@asynchronous
async def test_an_error_of_opening_is_raised_and_tried_again():
    class Failing(stores.Memory):
        fails = True

        def lease(self, owner, seconds):
            if self.fails:
                raise tamis.StoreError("down")
            return super().lease(owner, seconds)

    store = Failing()
    g = tamis.AsyncGuard(store, quotient())
    with pytest.raises(tamis.StoreError, match="down"):
        await g.get("a")
    store.fails = False
    assert await g.get("a") is None
    await g.close()


def test_bad_arguments_are_named_at_once():
    with pytest.raises(TypeError, match="store must be"):
        tamis.AsyncGuard({})
    with pytest.raises(ValueError, match="threads must be from 1 to 4096, not 0"):
        tamis.AsyncGuard(stores.Memory(), threads=0)
    with pytest.raises(TypeError, match="no_such"):
        asyncio.run(tamis.AsyncGuard(stores.Memory(), no_such=1).open())


@asynchronous
async def test_keys_are_iterated_and_contained():
    async with tamis.AsyncGuard(stores.Memory(), quotient()) as g:
        await g.put_many({"a": "1", 5: "2"})
        assert {key async for key in g} == {b"a", 5}
        assert await g.contains("a")
        assert not await g.contains("b")


# The clients of Redis and PostgreSQL.


@pytest.fixture(params=["Redis", "Postgres"])
def served(request):
    """A function that opens the store of a server."""
    if request.param == "Redis":
        url, name = request.getfixturevalue("redis_url"), f"async {time.monotonic_ns()}"
        return lambda: stores.Redis(url, name=name, grace=0)
    import psycopg

    url, schema = request.getfixturevalue("postgres_url"), f"async{time.monotonic_ns()}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {schema}")
    return lambda: stores.Postgres(f"{url} options='-c search_path={schema}'")


@asynchronous
async def test_values_are_read_without_a_thread(served, monkeypatch):
    store = served()
    async with tamis.AsyncGuard(store, quotient()) as g:
        await g.put_many((i, str(i)) for i in range(200))
        assert g._reader is not None
        monkeypatch.setattr(store, "get_many", None)
        assert await g.get(5) == "5"
        assert await asyncio.gather(*(g.get(i) for i in range(200))) == [str(i) for i in range(200)]
        assert await g.get_many([3, "absent", 4]) == ["3", None, "4"]
        monkeypatch.undo()


@asynchronous
async def test_cancelled_reads_mix_up_no_answers(served):
    """A connection whose answer nobody waited for must not give it to the next query."""
    chance = random.Random(6)
    async with tamis.AsyncGuard(served(), quotient()) as g:
        await g.put_many((i, str(i)) for i in range(300))

        async def ask(i):
            assert await g.get(i) == str(i)
            assert await g.get_many([i, i + 1]) == [str(i), str(i + 1)]

        for _ in range(10):
            tasks = [asyncio.create_task(ask(i)) for i in range(30)]
            await asyncio.sleep(chance.random() * 0.01)
            for task in tasks[::2]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            wrong = [r for r in done if not (r is None or isinstance(r, asyncio.CancelledError))]
            assert wrong == []
        assert await g.get(7) == "7"


@asynchronous
async def test_a_server_that_is_gone_is_a_store_error(postgres_url):  # noqa: F811
    import psycopg

    async with tamis.AsyncGuard(stores.Postgres(postgres_url, timeout=2), quotient()) as g:
        await g.put("gone", "x")
        assert await g.get("gone") == "x"
        with psycopg.connect(postgres_url, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        assert await g.get("gone") == "x"  # by a new connection
        g._reader._pool.conninfo = "host=127.0.0.1 port=1 dbname=none"

        async def ask():
            for _ in range(20):  # the pool may be about to connect as before
                with psycopg.connect(postgres_url, autocommit=True) as db:
                    db.execute(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                    )
                await g.get("gone")

        with pytest.raises(tamis.StoreError, match=r"Postgres at 127\.0\.0\.1"):
            await ask()
        with contextlib.suppress(tamis.StoreError):
            await g.delete("gone")


@asynchronous
async def test_a_table_of_postgres_that_others_write_to(postgres_url):  # noqa: F811
    import psycopg

    name = f"t{time.monotonic_ns()}"
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as db:
        await db.execute(f"CREATE TABLE {name} (a uuid, b int, v jsonb, PRIMARY KEY (a, b))")
        store = stores.Postgres(postgres_url, table=name, key=("a", "b"), value="v", where="b > 0")
        async with tamis.AsyncGuard(store, quotient()) as g:
            one = "00000000-0000-0000-0000-000000000001"
            assert await g.get((one, 1)) is None
            await db.execute(f"INSERT INTO {name} VALUES (%s, 1, '[1]'), (%s, -1, '2')", (one, one))
            assert await g.get((one, 1)) == [1]
            assert await g.get_many([(one, 1), (one, -1), (one, 2)]) == [[1], None, None]


@asynchronous
async def test_a_page_and_metrics_of_an_asynchronous_guard():
    prometheus_client = pytest.importorskip("prometheus_client")
    async with tamis.AsyncGuard(stores.Memory(), quotient(), name="users") as g:
        registry = prometheus_client.CollectorRegistry()
        registry.register(tamis.metrics.Collector(g))
        page = g.serve()
        await g.put("a", "x")
        await g.get("b")
        await g.get_many(["a", "c"])
        assert page.sample.read() == ["b", "c"]
        assert page.data()["stats"]["queries"] == 3
        labels = {"guard": "users"}
        assert registry.get_sample_value("tamis_guard_queries_total", labels) == 3
    assert registry.get_sample_value("tamis_guard_queries_total", labels) is None
