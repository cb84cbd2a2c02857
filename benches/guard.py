"""What a guard costs: CPU per operation for each store, raw and guarded.

    python benches/guard.py [--stores Memory SQLite …] [--keys 20000] [--rounds 5]

It prints one table. For each store, the first line is the CPU time of this process per operation
on the raw driver: the same values in a table, hash or folder of the same kind, with the same commit
and the same durability, but without an index, a journal and a lease. The lines below it are
multiples of that: a guard that holds the *lease*; a *strict* one, without the lease or on a table
that others write to; and the same with max_staleness="100ms". Batches are of 100 keys, for queries
half of them absent, and count per key. Queries are the least of rounds in which all take turns.
Writes are the mean of the rounds, as some of them do work for others (SQLite's checkpoints, the
index of hashes), and no guard follows them meanwhile. The driver of a server (Redis, Postgres) also
waits, which CPU time leaves out: --elapsed prints elapsed time. Servers are started for this, and
stopped.

The last column is the break-even: how long a read of an absent key must take for a guard to pay, if
90 % and if 50 % of the queries are for absent keys. With a fraction q of those, a guard that takes
a for one of them, and p more than the raw driver for the others, pays if q·c > q·a + (1 - q)·p, c
being the cost of a read.

At the end it compares 8 threads that read present keys through one guard with one thread, before
Postgres on the loopback, where the cores are the limit, and with 1 ms of delay in each direction,
which a proxy adds: there the threads wait at the same time if each has a connection.
"""

import argparse
import asyncio
import glob
import random
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import tamis
from tamis import stores

VALUE = "x" * 32
QUERIES = ("absent", "present", "false positive", "get_many")
WRITES = ("put", "delete", "put_many", "delete_many")
BATCH = 100
DELAY = 0.001


class RawDict:
    """A dictionary."""

    def __init__(self):
        self._values = {}
        self.get, self.put = self._values.get, self._values.__setitem__
        self.put_many = self._values.update

    def delete(self, key):
        self._values.pop(key, None)

    def delete_many(self, keys):
        for key in keys:
            self._values.pop(key, None)

    def get_many(self, keys):
        return [self._values.get(key) for key in keys]


class RawSQLite:
    """The driver, in WAL mode and with a commit per write, as the store has it."""

    def __init__(self, path):
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("CREATE TABLE raw (k TEXT PRIMARY KEY, v TEXT)")

    def get(self, key):
        row = self._db.execute("SELECT v FROM raw WHERE k = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def get_many(self, keys):
        marks = ", ".join("?" * len(keys))
        found = dict(self._db.execute(f"SELECT k, v FROM raw WHERE k IN ({marks})", keys))
        return [found.get(key) for key in keys]

    def put(self, key, value):
        self._db.execute("INSERT OR REPLACE INTO raw VALUES (?, ?)", (key, value))

    def put_many(self, items):
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO raw VALUES (?, ?)", items)
        self._db.execute("COMMIT")

    def delete(self, key):
        self._db.execute("DELETE FROM raw WHERE k = ?", (key,))

    def delete_many(self, keys):
        self._db.execute("BEGIN")
        self._db.executemany("DELETE FROM raw WHERE k = ?", [(key,) for key in keys])
        self._db.execute("COMMIT")


class RawRocksDB:
    """The driver, unsynced, as it is by default, or synced."""

    def __init__(self, path, sync):
        import rocksdict

        self._db = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
        self._batch = lambda: rocksdict.WriteBatch(raw_mode=True)
        self._options = rocksdict.WriteOptions()
        self._options.sync = sync

    def get(self, key):
        return self._db.get(key.encode())

    def get_many(self, keys):
        return self._db.get([key.encode() for key in keys])

    def put(self, key, value):
        self._db.put(key.encode(), value.encode(), self._options)

    def put_many(self, items):
        batch = self._batch()
        for key, value in items:
            batch.put(key.encode(), value.encode())
        self._db.write(batch, self._options)

    def delete(self, key):
        self._db.delete(key.encode(), self._options)

    def delete_many(self, keys):
        batch = self._batch()
        for key in keys:
            batch.delete(key.encode())
        self._db.write(batch, self._options)


class RawRedis:
    """The driver and one hash."""

    def __init__(self, url):
        import redis

        self._db = redis.Redis.from_url(url)

    def get(self, key):
        return self._db.hget("raw", key)

    def get_many(self, keys):
        return self._db.hmget("raw", keys)

    def put(self, key, value):
        self._db.hset("raw", key, value)

    def put_many(self, items):
        self._db.hset("raw", mapping=dict(items))

    def delete(self, key):
        self._db.hdel("raw", key)

    def delete_many(self, keys):
        self._db.hdel("raw", *keys)


class RawPostgres:
    """The driver, with a commit per write."""

    def __init__(self, conninfo):
        import psycopg

        self._db = psycopg.connect(conninfo, autocommit=True)
        self._db.execute("CREATE TABLE raw (k TEXT PRIMARY KEY, v TEXT)")
        self._upsert = (
            "INSERT INTO raw VALUES (%s, %s) ON CONFLICT (k) DO UPDATE SET v = excluded.v"
        )

    def get(self, key):
        row = self._db.execute("SELECT v FROM raw WHERE k = %s", (key,)).fetchone()
        return None if row is None else row[0]

    def get_many(self, keys):
        found = dict(self._db.execute("SELECT k, v FROM raw WHERE k = ANY(%s)", (keys,)).fetchall())
        return [found.get(key) for key in keys]

    def put(self, key, value):
        self._db.execute(self._upsert, (key, value))

    def put_many(self, items):
        with self._db.transaction(), self._db.cursor() as cursor:
            cursor.executemany(self._upsert, items)

    def delete(self, key):
        self._db.execute("DELETE FROM raw WHERE k = %s", (key,))

    def delete_many(self, keys):
        self._db.execute("DELETE FROM raw WHERE k = ANY(%s)", (keys,))


def guard(store, keys, **options):
    """A guard that does not mind the false positives of this benchmark."""
    f = tamis.Telescoping(capacity=2 * keys, fpr=2**-8)
    return tamis.Guard(store, f, on_rate=lambda _: None, **options)


# Each opens the raw driver and guards in three modes; a mode is missing where there is none.


def memory(folder, keys, stack):
    store = stores.Memory()
    modes = {"lease": guard(store, keys, lease=10**6)}
    modes["strict"] = guard(store, keys)
    modes["100ms"] = stack.enter_context(guard(store, keys, max_staleness="100ms"))
    return RawDict(), modes


def sqlite(folder, keys, stack):
    path = folder / "shared.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        for name in ("one", "two"):
            db.execute(f"CREATE TABLE {name} (k TEXT PRIMARY KEY, v TEXT)")

    def table(name, **options):
        return guard(stores.SQLite(path, table=name, key="k", value="v"), keys, **options)

    modes = {"lease": guard(stores.SQLite(folder / "own.db"), keys, lease=10**6)}
    modes["strict"] = table("one")
    modes["100ms"] = table("two", max_staleness="100ms")
    return RawSQLite(folder / "raw.db"), {
        name: stack.enter_context(each) for name, each in modes.items()
    }


def rocksdb(folder, keys, stack, sync=False):
    store = stores.RocksDB(folder / "own", sync=sync)
    g = stack.enter_context(guard(store, keys, lease=10**6))
    return RawRocksDB(folder / "raw", sync), {"lease": g}


def synced_rocksdb(folder, keys, stack):
    return rocksdb(folder, keys, stack, sync=True)


def redis(folder, keys, stack):
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    stack.enter_context(running([*command, "--dir", str(folder)], port))
    url = f"redis://127.0.0.1:{port}"
    modes = {}
    for name, options in (
        ("lease", {"lease": 60}),
        ("strict", {}),
        ("100ms", {"max_staleness": "100ms"}),
    ):
        store = stores.Redis(url, grace=0)
        modes[name] = stack.enter_context(guard(store, keys, **options))
    return RawRedis(url), modes


def start_postgres(folder, stack):
    """Start a server in a folder, and return the connection string."""
    program = Path(sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))[-1])
    port, data = free_port(), folder / "data"
    folder.chmod(0o777)
    as_user = ["runuser", "-u", "postgres", "--"] if Path("/root").owner() == whoami() else []
    setup = [*as_user, str(program.with_name("initdb")), "-D", str(data), "-A", "trust"]
    subprocess.run([*setup, "-U", "tamis"], check=True, stdout=subprocess.DEVNULL)
    command = [*as_user, str(program), "-D", str(data), "-p", str(port), "-k", str(folder)]
    stack.enter_context(running([*command, "-h", "127.0.0.1"], port))
    return f"host=127.0.0.1 port={port} user=tamis dbname=postgres"


def postgres(folder, keys, stack):
    conninfo = start_postgres(folder, stack)
    raw = RawPostgres(conninfo)
    for name in ("one", "two"):
        raw._db.execute(f"CREATE TABLE {name} (k TEXT PRIMARY KEY, v TEXT)")

    def table(name, **options):
        return guard(stores.Postgres(conninfo, table=name, key="k", value="v"), keys, **options)

    modes = {"lease": guard(stores.Postgres(conninfo), keys, lease=10**6)}
    modes["lease"].conninfo = conninfo
    modes["strict"], modes["100ms"] = table("one"), table("two", max_staleness="100ms")
    return raw, {name: stack.enter_context(each) for name, each in modes.items()}


STORES = {
    "Memory": memory,
    "SQLite": sqlite,
    "RocksDB": rocksdb,
    "RocksDB synced": synced_rocksdb,
    "Redis": redis,
    "Postgres": postgres,
}


def whoami():
    import getpass

    return getpass.getuser()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def running(command, port):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        time.sleep(1)
        yield
    finally:
        process.terminate()
        process.wait()


class Load:
    """The operations of one round, with new keys for each."""

    def __init__(self, keys, count):
        self._present = [f"key {i}" for i in range(keys)]
        self._count, self._drawn = count, 0
        self._random = random.Random(1)

    def _new(self, count):
        self._drawn += count
        return [f"new {i}" for i in range(self._drawn - count, self._drawn)]

    def queries(self, target):
        """Return the work of each operation, and how many operations that is."""
        count, few = self._count, max(self._count // 10, 10)
        f = getattr(target, "filter", ())
        new = self._new(300 * few)
        fooling = [key for key in new if key in f][:few] if f else new[:few]
        absent = [key for key in self._new(count) if key not in f]
        present = self._random.choices(self._present, k=count)
        mixed = [present[i] if i % 2 else absent[i % len(absent)] for i in range(count)]
        batches = [mixed[i : i + BATCH] for i in range(0, count, BATCH)]
        return {
            "absent": (lambda: [target.get(key) for key in absent], len(absent)),
            "present": (lambda: [target.get(key) for key in present], count),
            "false positive": (lambda: [target.get(key) for key in fooling], len(fooling)),
            "get_many": (lambda: [target.get_many(batch) for batch in batches], count),
        }

    def writes(self, target):
        """Return the same for writes, which leave as many keys as there were."""
        few = max(self._count // 10, 10)
        puts, batches = self._new(few), [self._new(BATCH) for _ in range(few // 10)]
        items = [[(key, VALUE) for key in batch] for batch in batches]
        many = BATCH * len(batches)
        return {
            "put": (lambda: [target.put(key, VALUE) for key in puts], few),
            "delete": (lambda: [target.delete(key) for key in puts], few),
            "put_many": (lambda: [target.put_many(batch) for batch in items], many),
            "delete_many": (lambda: [target.delete_many(batch) for batch in batches], many),
        }


def timed(work, clock):
    start = clock()
    work()
    return clock() - start


def measured(raw, modes, load, rounds, clock):
    """Return the time of each operation on each target, in seconds."""
    targets = {"raw": raw, **modes}
    times = {name: {} for name in targets}
    for _ in range(rounds):
        works = {name: load.queries(target) for name, target in targets.items()}
        for operation in QUERIES:
            for name in targets:
                work, count = works[name][operation]
                spent = timed(work, clock) / count if count else float("inf")
                times[name][operation] = min(spent, times[name].get(operation, spent))
    if "100ms" in modes:
        targets.pop("100ms").close()  # it would follow the others' writes in this process
    totals = {name: dict.fromkeys(WRITES, (0.0, 0)) for name in targets}
    for _ in range(rounds):
        for name, target in list(targets.items()):
            for operation, (work, count) in load.writes(target).items():
                try:
                    spent = timed(work, clock)
                except tamis.LeaseError:  # a second guard of the same store
                    del targets[name]
                    break
                total, number = totals[name][operation]
                totals[name][operation] = total + spent, number + count
    for name in targets:
        times[name] |= {operation: t / n for operation, (t, n) in totals[name].items()}
    return times


def show_head():
    heads = "".join(f"{name:>16}" for name in (*QUERIES, *WRITES))
    print(f"{'':<24}{heads}{'pays from a miss of (90 %, 50 % absent)':>44}")


def show(name, times):
    for mode, spent in times.items():
        cells = []
        for operation in (*QUERIES, *WRITES):
            seconds, raw = spent.get(operation), times["raw"].get(operation)
            if not seconds or not raw or seconds == float("inf"):
                cells.append("–")
            elif mode == "raw":
                cells.append(f"{seconds * 1e6:.2f} µs")
            else:
                cells.append(f"× {seconds / raw:.2f}")
        if mode != "raw":
            added = max(spent["present"] - times["raw"]["present"], 0)
            costs = [spent["absent"] + (1 - share) / share * added for share in (0.9, 0.5)]
            cells.append(" to ".join(f"{cost * 1e6:.1f} µs" for cost in costs))
        head = f"{name if mode == 'raw' else '':<16}{mode:<8}"
        print(head + "".join(f"{cell:>16}" for cell in cells[:8]) + "".join(cells[8:]).rjust(44))
    print(flush=True)


# Threads before Postgres.


def reads_per_second(g, threads, seconds=2.0):
    """Return how many present keys these threads read per second."""
    done, stop = [0] * threads, time.perf_counter() + seconds

    def read(i):
        while time.perf_counter() < stop:
            g.get(f"key {(8 * done[i] + i) % 1000}")
            done[i] += 1

    running = [threading.Thread(target=read, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(done) / seconds


def show_threads(conninfo, keys):
    """Compare 8 threads with one, on the loopback and with a delay."""
    listening = free_port()
    server = re.search(r"port=(\d+)", conninfo)[1]
    proxy = [sys.executable, __file__, "--proxy", str(listening), server]
    with running(proxy, listening):
        for port, what in ((server, "the loopback"), (str(listening), "2 ms of delay")):
            there = conninfo.replace(f"port={server}", f"port={port}")
            with guard(stores.Postgres(there), keys) as g:
                one, eight = (reads_per_second(g, threads) for threads in (1, 8))
            print(
                f"Postgres, {what}: {one:,.0f} reads per second with one thread, {eight:,.0f} with "
                f"8 threads: × {eight / one:.1f}"
            )


async def delay_bytes(listening, port):
    """Pass bytes on to a server after a delay, in both directions."""
    clients = set()

    async def pump(reader, writer):
        loop = asyncio.get_running_loop()
        while part := await reader.read(1 << 16):
            loop.call_later(DELAY, writer.write, part)
        loop.call_later(DELAY, writer.close)

    async def serve(reader, writer):
        answers, queries = await asyncio.open_connection("127.0.0.1", port)
        clients.add(asyncio.gather(pump(reader, queries), pump(answers, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", listening)
    await server.serve_forever()


def hot_path(keys, rounds):
    """Return the ratio of `g.get` of an absent key to `key in g.filter`, interleaved."""
    g = guard(stores.Memory(), keys, lease=10**6)
    g.put_many((f"key {i}", VALUE) for i in range(keys))
    f, absent = g.filter, [f"absent {i}" for i in range(20_000)]
    absent = [key for key in absent if key not in f]
    guarded, plain = [], []
    for _ in range(2 * rounds):
        for times, ask in ((guarded, g.get), (plain, None)):
            start = time.process_time()
            if ask is None:
                for key in absent:
                    key in f  # noqa: B015
            else:
                for key in absent:
                    ask(key)
            times.append(time.process_time() - start)
    return min(guarded) / min(plain)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stores", nargs="*", choices=STORES, default=list(STORES))
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--count", type=int, default=2000, help="queries per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--elapsed", action="store_true", help="elapsed time, not CPU time")
    parser.add_argument("--proxy", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.proxy:
        asyncio.run(delay_bytes(*options.proxy))
        return
    clock = time.perf_counter if options.elapsed else time.process_time
    kind = "elapsed" if options.elapsed else "CPU"
    print(f"{kind} time per operation; guarded as a multiple of raw; {options.keys:,} keys")
    ratio = hot_path(options.keys, options.rounds)
    print(f"g.get of an absent key, with the lease: × {ratio:.1f} of `key in g.filter`\n")
    show_head()
    for name in options.stores:
        if name == "Redis" and shutil.which("redis-server") is None:
            print(f"{name}: redis-server is not installed\n")
            continue
        if name == "Postgres" and not glob.glob("/usr/lib/postgresql/*/bin/postgres"):
            print(f"{name}: postgresql is not installed\n")
            continue
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            raw, modes = STORES[name](Path(folder), options.keys, stack)
            items = [(f"key {i}", VALUE) for i in range(options.keys)]
            for target in (raw, *modes.values()):
                for start in range(0, options.keys, 1000):
                    try:
                        target.put_many(items[start : start + 1000])
                    except tamis.LeaseError:
                        break  # a second guard of the same store
            load = Load(options.keys, options.count)
            for mode in modes.values():
                mode.rebuild()
            conninfo = getattr(modes["lease"], "conninfo", None)
            show(name, measured(raw, modes, load, options.rounds, clock))
            if conninfo:
                show_threads(conninfo, options.keys)


if __name__ == "__main__":
    main()
