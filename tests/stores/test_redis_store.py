"""What a Redis server loses, and what guards do then."""

import itertools
import os
import socket
import threading
from contextlib import ExitStack, closing

import pytest
from positions import position
from servers import redis_server, redis_url  # noqa: F401

import tamis
from tamis import stores

_names = itertools.count()


def telescoping():
    return tamis.Telescoping(capacity=1000, fpr=2**-4)


def hasher(seed):
    return lambda keys: tamis.hash_keys(keys, seed=seed)


@pytest.fixture
def connected():
    """Stores, of a URL, that are closed after the test."""
    with ExitStack() as ending:

        def connect(url, **options):
            return ending.enter_context(closing(stores.Redis(url, **options)))

        yield connect


@pytest.fixture
def opened(redis_url, connected):  # noqa: F811
    name = f"redis test {next(_names)}"
    return lambda **options: connected(redis_url, name=name, **{"grace": 0, **options})


@pytest.fixture
def client(redis_url):  # noqa: F811
    import redis

    with redis.Redis.from_url(redis_url) as client:
        yield client


def forget(client, store, part):
    """Delete one of the keys of a store, as an eviction would."""
    assert client.delete(f"{{{store._data_key[1:-3].decode()}}}:{part}")


def writer(store, owner, seconds=60.0, seed=1):
    assert store.lease(owner, seconds)
    store.attach(owner, hasher(seed), b"%d" % seed)
    return store


def test_a_rebuild_of_the_index_that_lost_the_lease_changes_nothing(opened):
    one, two = opened(), opened()
    writer(one, "one").put_many(list(range(100)), ["x"] * 100, "one")

    def interrupted(keys):
        if one._lease._granted[0]:  # the first time: the lease goes to another guard, which writes
            one.release("one")
            writer(two, "two", seed=2).put_many(list(range(100, 200)), ["y"] * 100, "two")
        return tamis.hash_keys(keys, seed=3)

    with pytest.raises(tamis.LeaseError):
        one.attach("one", interrupted, b"3")
    expected = tamis.hash_keys(range(200), seed=2)
    assert sorted(two.run(0, 2**64 - 1).tolist()) == sorted(expected.tolist())
    start, parts = two.contents()
    assert sorted(key for part in parts for key in part) == [*range(200)]
    assert start == position(two)


def test_the_lease_is_renewed_while_the_index_is_rebuilt(opened, monkeypatch):
    store = opened()
    keys = list(range(10_000))
    writer(store, "one").put_many(keys, ["x"] * len(keys), "one")
    calls = []
    monkeypatch.setattr(store._lease, "take", lambda *arguments: calls.append(arguments) or True)
    monkeypatch.setattr(store._lease, "_granted", ("one", 60.0, 0.0))  # half of it is over
    store.attach("one", hasher(2), b"2")
    assert calls
    assert set(calls) == {("one", 60.0)}


def test_a_lost_position_equals_nothing_and_nothing_is_written(opened, client):
    with tamis.Guard(opened(), telescoping()) as g, tamis.Guard(opened(), telescoping()) as other:
        g.put_many((i, "x") for i in range(50))
        assert other.get_many(range(50)) == ["x"] * 50
        for part in "dhejwm":
            forget(client, g.store, part)
        assert position(g.store) != position(g.store)
        with pytest.raises(tamis.LeaseError):
            g.store.put_many([1000], ["y"], g.driver.protocol.owner)
        assert g.store.get_many([1000]) == [None]
        g.rebuild()  # this guard still holds the lease, by its own clock
        g.put_many((i, "y") for i in range(100, 150))
        assert g.get_many(range(150)) == [None] * 100 + ["y"] * 50
        assert other.get_many(range(100, 150)) == ["y"] * 50


@pytest.mark.parametrize("part", "ehjm")
def test_an_evicted_part_is_noticed_before_anything_is_written(opened, client, part):
    one = writer(opened(), "one")
    one.put_many(list(range(50)), ["x"] * 50, "one")
    since = position(one)
    forget(client, one, part)
    if part in "hm":
        with pytest.raises(tamis.LeaseError):
            one.put_many([50], ["y"], "one")
        with pytest.raises(tamis.LeaseError):
            one.delete_many([1], "one")
        assert one.get_many([1, 50]) == ["x", None]
        with pytest.raises(tamis.StoreError, match="index of hashes was lost"):
            one.run(0, 2**64 - 1)
        writer(one, "one")
    commit = one.put_many([50], ["y"], "one", since)
    assert (commit.changes is None) == (part == "e")
    if part in "ej":
        assert one.changes(since) is None
    assert len(one.run(0, 2**64 - 1)) == 51
    assert sorted(key for keys in one.contents()[1] for key in keys) == [*range(51)]


def test_keys_come_from_the_data_if_the_index_is_lost(opened, client):
    store = writer(opened(), "one")
    store.put_many(list(range(50)), ["x"] * 50, "one")
    forget(client, store, "h")
    start, parts = store.contents()
    assert sorted(key for part in parts for key in part) == [*range(50)]
    assert start == position(store)


def test_the_keys_are_those_of_one_position(opened, monkeypatch):
    monkeypatch.setattr(tamis.stores.redis.store, "BATCH", 10)
    store = writer(opened(), "one")
    store.put_many(list(range(100)), ["x"] * 100, "one")
    start, parts = store.contents()
    found = list(next(parts))
    for i in range(100):  # every key changes at least once
        store.delete_many([i], "one")
        store.put_many([i + 1000], ["y"], "one")
        if i % 3 == 0:
            store.put_many([i], ["z"], "one")
    found += [key for part in parts for key in part]
    assert sorted(found) == [*range(100)]
    changes = store.changes(start)
    kept = set(found) | set(changes.added)
    for key in changes.removed:
        kept.discard(key)
    assert sorted(kept) == sorted(key for part in store.contents()[1] for key in part)


def test_a_reader_follows_the_writer_by_the_journal(opened):
    with tamis.Guard(opened(), telescoping()) as g, tamis.Guard(opened(), telescoping()) as reader:
        for i in range(20):
            g.put_many({i: "x", i + 100: "x"})
            g.delete(i)
            assert reader.get_many([i, i + 100, i + 500]) == [None, "x", None]
        assert (reader.stats.rebuilds, reader.stats.passed) == (1, 0)
        assert len(reader.filter) == 20


def test_the_journal_is_bounded_and_read_in_pieces(opened, monkeypatch, client):
    monkeypatch.setattr(tamis.stores.redis.store, "JOURNAL", 200)
    store = writer(opened(), "one")
    first = position(store)
    for start in range(0, 2000, 100):
        recent = position(store)
        store.put_many(list(range(start, start + 100)), ["x"] * 100, "one")
    assert client.xlen(store._journal_key) < 500
    assert store.changes(first) is None
    found, since = [], recent
    while True:
        changes = store.changes(since, limit=30)
        assert len(changes.added) <= 30
        found += changes.added
        since = changes.position
        if not changes.more:
            break
    assert found == [*range(1900, 2000)]
    assert since == position(store)
    assert store.changes("1900.another history") is None


# The lease, and servers that come back.


class Clock:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self, *_):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    import time

    clock = Clock()
    monkeypatch.setattr(time, "clock_gettime", clock)
    return clock


def test_a_lease_is_over_when_it_was_watched_for_its_length(opened, clock):
    one, two = opened(), opened()
    assert one.lease("one", 10)
    assert not two.lease("two", 5)
    clock.now += 9
    assert one.lease("one", 10)
    clock.now += 9
    assert not two.lease("two", 5)  # the renewal began the watch again
    clock.now += 9.9
    assert not two.lease("two", 5)
    clock.now += 0.3
    assert two.lease("two", 5)
    assert not one.lease("one", 10)
    two.release("two")
    assert one.lease("one", 10)


def test_a_flushed_server_ends_no_lease_early(opened, client, clock):
    one, two = opened(), opened()
    writer(one, "one", 10)
    for part in "wem":
        forget(client, one, part)
    assert not two.lease("two", 10)
    clock.now += 9
    forget(client, one, "w")  # and once more
    assert not two.lease("two", 10)
    clock.now += 9
    assert not two.lease("two", 10)
    assert not one.lease("one", 10)  # over for the guard that held it, too
    clock.now += 1.2
    assert two.lease("two", 10)


def test_the_holder_gets_a_lost_lease_back_at_once(opened, client, clock):
    one, two = opened(), opened()
    writer(one, "one", 10)
    forget(client, one, "w")
    assert not two.lease("two", 10)
    clock.now += 5
    assert one.lease("one", 10)
    clock.now += 9
    assert not two.lease("two", 10)


def test_a_restarted_server_ends_no_lease_early(redis_server, connected, clock):  # noqa: F811
    server = redis_server
    one = writer(connected(server.url, grace=0), "one", 3600)
    one.put_many([1], ["x"], "one")
    server.restart()
    two = connected(server.url)
    assert not two.lease("two", 3600)
    with pytest.raises(tamis.LeaseError):
        one.put_many([2], ["x"], "one")
    assert two.get_many([2]) == [None]
    clock.now += 1800
    assert not two.lease("two", 3600)
    writer(one, "one", 3600).put_many([2], ["x"], "one")
    clock.now += 3599
    assert not two.lease("two", 3600)
    clock.now += 3700
    assert two.lease("two", 3600)


def test_guards_follow_a_restarted_server(redis_server):  # noqa: F811
    server = redis_server
    one = tamis.Guard(stores.Redis(server.url, grace=0), telescoping(), lease=0.5)
    one.put_many((i, "x") for i in range(100))  # before another one may take the lease
    two = tamis.Guard(stores.Redis(server.url), telescoping(), lease=0.5)
    server.restart()
    stop = threading.Event()

    def write():
        """Write through the second guard as soon as it gets the lease."""
        i = 0
        while not stop.is_set() and i < 100:
            try:
                two.put(1000 + i, "y")
            except (tamis.LeaseError, tamis.StoreError):
                stop.wait(0.02)
                continue
            written.append(1000 + i)
            i += 1

    written, denied = [], []
    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        for key in list(written):
            if one.get(key) is None:
                denied.append(key)
    stop.set()
    thread.join()
    assert len(written) == 100
    assert not denied
    one.close()
    two.close()


def test_a_server_that_is_down_is_a_store_error(redis_server, connected):  # noqa: F811
    server = redis_server
    store = connected(server.url.replace("//", "//default:secret-word@"), timeout=2, grace=0)
    writer(store, "one").put_many([1], ["x"], "one")
    server.stop()
    for call in (
        lambda: store.get_many([1]),
        lambda: store.put_many([2], ["x"], "one"),
        lambda: store.delete_many([2], "one"),
        lambda: store.lease("one", 10),
        lambda: store.release("one"),
        lambda: store.changes("1.x"),
        lambda: store.run(0, 5),
        lambda: store.metadata("x"),
        lambda: list(store.contents()[1]),
        lambda: store.attach("one", hasher(1), b"1"),
        lambda: stores.Redis(server.url, timeout=2),
    ):
        with pytest.raises(tamis.StoreError, match=r"Redis at 127\.0\.0\.1:") as raised:
            call()
        assert isinstance(raised.value, OSError)
        assert "secret" not in str(raised.value)
    server.start()
    assert store.get_many([1]) == [None]
    with pytest.raises(ValueError, match="url must be a Redis URL") as raised:
        stores.Redis("redis://user:secret-word:9@host:port")
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_server_that_does_not_answer_is_a_store_error(redis_server, connected):  # noqa: F811
    import signal

    server = redis_server
    store = connected(server.url, timeout=2)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(tamis.StoreError):
            store.get_many([1])
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert store.get_many([1]) == [None]


def test_a_store_that_cannot_be_opened_closes_its_connection():
    ended = threading.Event()
    answers = {b"HELLO": b"%1\r\n$5\r\nproto\r\n:3\r\n", b"PING": b"-ERR refused\r\n"}

    def refuse(server):
        connection, _ = server.accept()
        with connection:
            while commands := connection.recv(4096):
                for command in commands.split(b"*")[1:]:
                    name = command.split()[2].upper()
                    connection.sendall(answers.get(name, b"+OK\r\n"))
        ended.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=refuse, args=(server,), daemon=True)
        thread.start()
        with pytest.raises(tamis.StoreError, match="refused") as raised:
            stores.Redis(f"redis://127.0.0.1:{server.getsockname()[1]}", timeout=10)
        assert ended.wait(5)
        assert raised.tb  # which keeps the store from being collected
        thread.join()


def test_the_port_of_a_stopped_server_stays_its_own(redis_server):  # noqa: F811
    """Otherwise a process that comes in between keeps it from starting again."""
    port = int(redis_server.url.rpartition(":")[2])
    redis_server.stop()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    redis_server.start()


def test_signals_of_changes_and_of_a_new_connection(redis_server, connected):  # noqa: F811
    server = redis_server
    store = connected(server.url, grace=0)
    before = set(threading.enumerate())  # perhaps of guards that other tests left open
    woken = threading.Event()
    end = store.watch(woken.set)
    assert woken.wait(30)  # subscribed
    woken.clear()
    writer(store, "one").put_many([1], ["x"], "one")
    assert woken.wait(30)
    woken.clear()
    server.restart()
    assert woken.wait(30)
    end()
    begun = set(threading.enumerate()) - before
    assert not any(t.name == "tamis-redis-watch" for t in begun)


def test_a_forked_child_is_another_owner(opened):
    store = writer(opened(), "one")
    store.put_many([1], ["x"], "one")
    child = os.fork()
    if child == 0:
        try:
            assert store.get_many([1]) == ["x"]
            assert not store.lease("one", 60)
            try:
                store.put_many([2], ["y"], "one")
            except tamis.LeaseError:
                os._exit(0)
        finally:
            os._exit(1)
    for _ in range(200):
        assert store.get_many([1]) == ["x"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.put_many([3], ["z"], "one")


def test_a_lease_of_an_earlier_run_does_not_write(redis_server, connected, clock):  # noqa: F811
    """A server that comes back with an earlier state may have granted the lease since."""
    import redis

    server = redis_server
    one = writer(connected(server.url, grace=0), "one", 10)
    one.put_many([1], ["x"], "one")
    with redis.Redis.from_url(server.url) as client:
        client.save()
    one.release("one")
    two = writer(connected(server.url), "two", 10)
    two.put_many([2], ["x"], "two")
    start = position(two)
    server.restart()
    with pytest.raises(tamis.LeaseError):
        one.put_many([3], ["x"], "one")
    assert not one.lease("one", 10)
    assert one.get_many([1, 2, 3]) == ["x", None, None]
    assert two.changes(start) is None
    writer(two, "two", 10).put_many([2], ["x"], "two")
    assert two.changes(start) is None


def test_an_index_built_while_the_same_guard_wrote_is_built_again(opened):
    store = writer(opened(), "one")
    store.put_many(list(range(100)), ["x"] * 100, "one")
    writes = iter([None])

    def interrupted(keys):
        for _ in writes:
            store.delete_many([5], "one")
            store.put_many([500], ["y"], "one")
        return tamis.hash_keys(keys, seed=2)

    store.attach("one", interrupted, b"2")
    expected = tamis.hash_keys([i for i in range(100) if i != 5] + [500], seed=2)
    assert sorted(store.run(0, 2**64 - 1).tolist()) == sorted(expected.tolist())
