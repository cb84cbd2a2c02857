"""What a guard costs: CPU per operation for each store, raw and guarded.

    python benches/guard.py [--stores Memory SQLite …] [--keys 20000] [--rounds 5]

For each store it prints the CPU time of this process per operation on the raw driver, and of a
guard as a multiple of that: a guard that holds the *lease*; a *strict* one, without the lease or on
a table that others write to; and the same with max_staleness="100ms". Each number is the least of
rounds in which all take turns. The driver of a server (Redis, Postgres) also waits, which CPU time
leaves out: --elapsed prints elapsed time. Redis and Postgres are started for this and stopped.

The last line of a store is the break-even: how long a read of an absent key must take for a guard
to pay. With a fraction q of queries for absent keys, a guard that takes a for one of those, and p
more than the raw driver for the others, pays if q·c > q·a + (1 - q)·p, c being the cost of a read.
"""

import argparse
import glob
import random
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import tamis
from tamis import stores

VALUE = "x" * 32
OPERATIONS = ("absent", "present", "false positive", "get_many", "put", "delete", "put_many")
BATCH = 100


class RawDict:
    """A dictionary."""

    def __init__(self):
        self._values = {}
        self.get, self.put = self._values.get, self._values.__setitem__
        self.put_many = self._values.update

    def delete(self, key):
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


class RawRocksDB:
    """The driver, unsynced, as it is by default."""

    def __init__(self, path):
        import rocksdict

        self._db = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
        self._batch = lambda: rocksdict.WriteBatch(raw_mode=True)

    def get(self, key):
        return self._db.get(key.encode())

    def get_many(self, keys):
        return self._db.get([key.encode() for key in keys])

    def put(self, key, value):
        self._db.put(key.encode(), value.encode())

    def put_many(self, items):
        batch = self._batch()
        for key, value in items:
            batch.put(key.encode(), value.encode())
        self._db.write(batch)

    def delete(self, key):
        self._db.delete(key.encode())


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


def rocksdb(folder, keys, stack):
    g = stack.enter_context(guard(stores.RocksDB(folder / "own"), keys, lease=10**6))
    return RawRocksDB(folder / "raw"), {"lease": g}


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


def postgres(folder, keys, stack):
    program = Path(sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))[-1])
    port, data = free_port(), folder / "data"
    folder.chmod(0o777)
    as_user = ["runuser", "-u", "postgres", "--"] if Path("/root").owner() == whoami() else []
    setup = [*as_user, str(program.with_name("initdb")), "-D", str(data), "-A", "trust"]
    subprocess.run([*setup, "-U", "tamis"], check=True, stdout=subprocess.DEVNULL)
    command = [*as_user, str(program), "-D", str(data), "-p", str(port), "-k", str(folder)]
    stack.enter_context(running([*command, "-h", "127.0.0.1"], port))
    conninfo = f"host=127.0.0.1 port={port} user=tamis dbname=postgres"
    raw = RawPostgres(conninfo)
    for name in ("one", "two"):
        raw._db.execute(f"CREATE TABLE {name} (k TEXT PRIMARY KEY, v TEXT)")

    def table(name, **options):
        return guard(stores.Postgres(conninfo, table=name, key="k", value="v"), keys, **options)

    modes = {"lease": guard(stores.Postgres(conninfo), keys, lease=10**6)}
    modes["strict"], modes["100ms"] = table("one"), table("two", max_staleness="100ms")
    return raw, {name: stack.enter_context(each) for name, each in modes.items()}


STORES = {
    "Memory": memory,
    "SQLite": sqlite,
    "RocksDB": rocksdb,
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

    def operations(self, target):
        """Return the work of each operation, and how many operations that is."""
        count, few = self._count, max(self._count // 10, 10)
        f = getattr(target, "filter", ())
        new = self._new(300 * few)
        fooling = [key for key in new if key in f][:few] if f else new[:few]
        absent = [key for key in self._new(count) if key not in f]
        present = self._random.choices(self._present, k=count)
        mixed = [present[i] if i % 2 else absent[i % len(absent)] for i in range(count)]
        batches = [mixed[i : i + BATCH] for i in range(0, count, BATCH)]
        puts = self._new(few)
        items = [[(key, VALUE) for key in self._new(BATCH)] for _ in range(few // 10)]
        return {
            "absent": (lambda: [target.get(key) for key in absent], len(absent)),
            "present": (lambda: [target.get(key) for key in present], count),
            "false positive": (lambda: [target.get(key) for key in fooling], len(fooling)),
            "get_many": (lambda: [target.get_many(batch) for batch in batches], count),
            "put": (lambda: [target.put(key, VALUE) for key in puts], few),
            "delete": (lambda: [target.delete(key) for key in puts], few),
            "put_many": (lambda: [target.put_many(batch) for batch in items], BATCH * len(items)),
        }


def measured(targets, load, rounds, clock):
    """Return the least time of each operation on each target, in seconds."""
    times = {name: {} for name in targets}
    for _ in range(rounds):
        works = {name: load.operations(target) for name, target in targets.items()}
        for operation in OPERATIONS:
            for name in targets:
                work, count = works[name][operation]
                if not count:
                    continue
                start = clock()
                try:
                    work()
                except tamis.LeaseError:
                    continue
                spent = (clock() - start) / count
                times[name][operation] = min(spent, times[name].get(operation, spent))
    return times


def show(name, times):
    modes = [mode for mode in times if mode != "raw"]
    heads = "".join(f"{mode:>10}" for mode in modes)
    print(f"\n{name:<16}{'raw':>10}{heads}")
    for operation in OPERATIONS:
        raw = times["raw"].get(operation)
        cells = [f"{raw * 1e6:.2f} µs" if raw else "–"]
        for mode in modes:
            spent = times[mode].get(operation)
            cells.append(f"× {spent / raw:.2f}" if spent and raw else "–")
        print(f"{operation:<16}" + "".join(f"{cell:>10}" for cell in cells))
    line = []
    for mode in modes:
        added = times[mode]["present"] - times["raw"]["present"]
        costs = [
            times[mode]["absent"] + (1 - share) / share * max(added, 0) for share in (0.9, 0.5)
        ]
        line.append(f"{mode} {costs[0] * 1e6:.1f} µs at 90 %, {costs[1] * 1e6:.1f} µs at 50 %")
    print("pays from a miss of: " + "; ".join(line))


def hot_path(keys, rounds):
    """Return the time of `g.get` of an absent key over that of `key in g.filter`, interleaved."""
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
    options = parser.parse_args()
    clock = time.perf_counter if options.elapsed else time.process_time
    kind = "elapsed" if options.elapsed else "CPU"
    print(f"{kind} time per operation; guarded as a multiple of raw; {options.keys:,} keys")
    ratio = hot_path(options.keys, options.rounds)
    print(f"g.get of an absent key, with the lease: × {ratio:.1f} of `key in g.filter`")
    for name in options.stores:
        if name == "Redis" and shutil.which("redis-server") is None:
            print(f"\n{name}: redis-server is not installed")
            continue
        if name == "Postgres" and not glob.glob("/usr/lib/postgresql/*/bin/postgres"):
            print(f"\n{name}: postgresql is not installed")
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
            show(name, measured({"raw": raw, **modes}, load, options.rounds, clock))


if __name__ == "__main__":
    main()
