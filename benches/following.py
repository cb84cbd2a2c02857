"""What a guard costs the writers of a PostgreSQL table that it follows.

    .venv/bin/python -m benches.following            # or: python benches/following.py

A real server on this machine, client and server on the same cores. Each ratio compares a table that
is followed by an active guard with a table of the same rows that is not, in turns.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benches.guard import start_postgres

from tamis import stores

CLIENTS = 8


def connect(conninfo):
    import psycopg

    return psycopg.connect(conninfo, autocommit=True)


class Followed:
    """A store that looks at its table every 100 ms, as a guard does."""

    def __init__(self, conninfo, table):
        self.store = stores.Postgres(conninfo, table=table, key="k", value="v")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.slowest = 0.0

    def __enter__(self):
        self._position = self._build()
        self._thread.start()
        return self

    def _build(self):
        position, parts = self.store.contents()
        for _ in parts:
            pass
        return position

    def _run(self):
        while not self._ended.wait(0.1):
            changes = self.store.changes(self._position)
            self._position = self._build() if changes is None else changes.position

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        self.store.close()


def per_second(conninfo, work, seconds):
    """Return how often eight clients do some work in a second."""
    ready, go, counts = threading.Barrier(CLIENTS + 1), threading.Event(), [0] * CLIENTS

    def run(client):
        with connect(conninfo) as db:
            ready.wait()
            go.wait()
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                work(db, client, counts[client])
                counts[client] += 1

    threads = [threading.Thread(target=run, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    ready.wait()
    go.set()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def ratios(conninfo, tables, measure, rounds):
    """Return the median ratio of a measure on the followed table to that on the other."""
    found = []
    for _ in range(rounds):
        plain, followed = (measure(conninfo, table) for table in tables)
        found.append(followed / plain)
    return statistics.median(found)


_runs = itertools.count()


def inserts(seconds):

    def measure(conninfo, table):
        this = next(_runs)

        def work(db, client, i):
            db.execute(f"INSERT INTO {table} VALUES (%s, 'v')", (f"{this} {client} {i}",))

        return per_second(conninfo, work, seconds)

    return measure


def transactions(seconds):

    def measure(conninfo, table):
        this = next(_runs)

        def work(db, client, i):
            with db.transaction():
                db.execute(f"INSERT INTO {table} VALUES (%s, 'v')", (f"{this} {client} {i}",))
                time.sleep(0.005)

        return per_second(conninfo, work, seconds)

    return measure


def updates(seconds):
    def measure(conninfo, table):
        def work(db, client, i):
            key = f"key {client * 1000 + i % 1000}"
            db.execute(f"UPDATE {table} SET v = 'w' WHERE k = %s", (key,))

        return per_second(conninfo, work, seconds)

    return measure


def timed(statement):
    def measure(conninfo, table):
        with connect(conninfo) as db:
            start = time.perf_counter()
            db.execute(statement.format(table=table))
            return time.perf_counter() - start

    return measure


def opening(conninfo, rows):
    """Return the longest time of a write while a guard is opened, and without that."""
    with connect(conninfo) as db:
        db.execute("CREATE TABLE large (k text PRIMARY KEY, v text)")
        db.execute(
            "INSERT INTO large SELECT 'key ' || i, 'v' FROM generate_series(1, %s) AS i", (rows,)
        )
    longest = []
    for build in (lambda: time.sleep(3), lambda: Followed(conninfo, "large").__enter__()):
        ended, times = threading.Event(), []

        def write(times=times, ended=ended):
            with connect(conninfo) as db:
                i = 0
                while not ended.is_set():
                    start = time.perf_counter()
                    db.execute(f"INSERT INTO large VALUES ('{id(times)} {i}', 'v')")
                    times.append(time.perf_counter() - start)
                    i += 1
                    time.sleep(0.001)

        thread = threading.Thread(target=write)
        thread.start()
        opened = build()
        ended.set()
        thread.join()
        longest.append(max(times))
        if opened:
            opened.__exit__()
    return longest


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10**6)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tamis-bench-")))
        conninfo = start_postgres(folder, stack)
        with connect(conninfo) as db:
            for table in ("plain", "followed"):
                db.execute(f"CREATE TABLE {table} (k text PRIMARY KEY, v text)")
                db.execute(
                    f"INSERT INTO {table} "
                    "SELECT 'key ' || i, 'v' FROM generate_series(0, 10000) AS i"
                )
        tables = ("plain", "followed")
        many = "INSERT INTO {table} SELECT 'many ' || i, 'v' FROM generate_series(1, 300000) AS i"
        with Followed(conninfo, "followed"):
            for name, measure, goal in (
                ("8 clients, autocommit inserts, per second", inserts(options.seconds), "≥ 0.70"),
                ("8 clients, transactions of 5 ms", transactions(options.seconds), "≥ 0.95"),
                ("8 clients, updates of values", updates(options.seconds), "≥ 0.90"),
            ):
                ratio = ratios(conninfo, tables, measure, options.rounds)
                print(f"{name:45} {ratio:6.2f}   ({goal})", flush=True)
            inserted, deleted = [], []
            for _ in range(options.rounds):
                inserted.append(ratios(conninfo, tables, timed(many), 1))
                delete = timed("DELETE FROM {table} WHERE k LIKE 'many%'")
                deleted.append(ratios(conninfo, tables, delete, 1))
                timed("VACUUM {table}")(conninfo, "plain")
                timed("VACUUM {table}")(conninfo, "followed")
            for name, found, goal in (
                ("INSERT of 300,000 rows, time", inserted, "≤ 1.6"),
                ("DELETE of 300,000 rows, time", deleted, "≤ 3"),
            ):
                print(f"{name:45} {statistics.median(found):6.2f}   ({goal})", flush=True)
        idle, opened = opening(conninfo, options.rows)
        print(f"longest write while a guard opens on {options.rows:,} rows: {opened * 1e3:.0f} ms "
              f"({idle * 1e3:.0f} ms without; ≤ 50 ms)")  # fmt: skip


if __name__ == "__main__":
    main()
