"""Random histories of a PostgreSQL table: its keys by following are its keys, after every look.

One thread drives several connections, so that nothing commits between a look and the query that it
is compared with. Statements that would wait for another connection are given up.
"""

import itertools
import os
import random
import re
import threading
import time
from contextlib import suppress
from types import MappingProxyType

import pytest
from servers import postgres_url  # noqa: F401

import tamis
from tamis import stores
from tamis.stores.postgres import follower

psycopg = pytest.importorskip("psycopg")

SOAK = int(os.environ.get("TAMIS_SOAK", "0"))
STEPS = 6000 if SOAK else 250
SEEDS = range(20 if SOAK else 1)
_schemas = itertools.count()


class Kind:
    """A kind of table: how it is created, and the statements of its own."""

    create = ("CREATE TABLE t (k text PRIMARY KEY, v text)",)
    options = MappingProxyType({"key": "k", "where": None})
    query = "SELECT k FROM t"
    insert = "INSERT INTO {table} (k, v) VALUES {rows}"
    key = "k"
    """The column that updates change."""
    tables = ("t",)
    replicated = True
    """Whether others may write in the role of a replica."""

    def new_key(self, chance):
        return f"'{chance.choice('aäb')}{chance.randrange(40)}'"

    def row(self, chance, key=None):
        return f"({key or self.new_key(chance)}, 'v')"

    def match(self, chance):
        return f"{self.key} = {self.new_key(chance)}"

    def plain(self, row):
        return row[0].encode() if isinstance(row[0], str) else row[0]

    def write(self, chance):
        """Return a random statement that writes."""
        table = chance.choice(self.tables)
        rows = ", ".join(
            {
                key: self.row(chance, key) for key in [self.new_key(chance) for _ in range(3)]
            }.values()
        )
        insert = self.insert.format(table=table, rows=rows)
        many = ", ".join(self.row(chance, self.number(i)) for i in range(1000, 1700))
        match = self.match(chance)
        return chance.choice(
            [
                insert,
                f"{insert} ON CONFLICT DO NOTHING",
                f"{insert} {self.conflict} DO UPDATE SET v = excluded.v",
                f"UPDATE {table} SET {self.key} = {self.new_key(chance)} WHERE {match}",
                f"UPDATE {table} SET v = 'w'",
                f"DELETE FROM {table} WHERE {self.match(chance)}",
                f"DELETE FROM {table} WHERE {self.match(chance)} OR {self.match(chance)}",
                f"{self.insert.format(table=table, rows=many)} ON CONFLICT DO NOTHING",
                f"DELETE FROM {table} WHERE {self.many}",
                f"MERGE INTO {table} USING (VALUES {rows}) AS new ({self.columns}) ON {self.same} "
                "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN "
                f"INSERT ({self.columns}) VALUES ({self.new_columns})",
                *self.more(chance),
            ]
        )

    conflict = "ON CONFLICT (k)"
    columns, new_columns, same = "k, v", "new.k, new.v", "t.k = new.k"
    many = "k LIKE 'm%'"

    def number(self, i):
        return f"'m{i}'"

    def more(self, chance):
        return []

    def ddl(self, chance):
        return []


class Numbers(Kind):
    """Keys that are checked at the end of the transaction, and are shifted."""

    create = ("CREATE TABLE t (k bigint PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text)",)
    many = "k BETWEEN 1000 AND 2000"
    conflict = ""
    replicated = False  # no deferred constraint is checked in that role: there would be duplicates

    def new_key(self, chance):
        return str(chance.randrange(40))

    def number(self, i):
        return str(i)

    def write(self, chance):
        return (
            super()
            .write(chance)
            .replace(" DO UPDATE SET v = excluded.v", "")
            .replace(" ON CONFLICT DO NOTHING", "")
        )

    def more(self, chance):
        return [
            "UPDATE t SET k = k + 1",
            "UPDATE t SET k = k - 1 WHERE k < 1000",
            "UPDATE t SET k = 41 - k WHERE k < 42",
            "UPDATE t SET k = 7 WHERE k IN (7, 8)",
        ]


class Tuples(Kind):
    """Keys of two columns, one of which may be NULL, with a condition."""

    create = ("CREATE TABLE t (a text, b integer, d boolean, v text, UNIQUE (a, b))",)
    options = MappingProxyType(
        {"key": ("a", "b"), "where": "d IS NOT true AND v <> 'gone' -- a % comment"}
    )
    query = (
        "SELECT a, b FROM t WHERE a IS NOT NULL AND b IS NOT NULL AND d IS NOT true AND v <> 'gone'"
    )
    insert = "INSERT INTO {table} (a, b, v) VALUES {rows}"
    key, conflict = "a", "ON CONFLICT (a, b)"
    columns, new_columns, same = "a, b, v", "new.a, new.b, new.v", "(t.a, t.b) = (new.a, new.b)"
    many = "a LIKE 'm%'"

    def row(self, chance, key=None):
        return f"({key or self.new_key(chance)}, {chance.randrange(3)}, 'v')"

    def plain(self, row):
        return tamis._native.plain_key((row[0].encode(), row[1]))

    def more(self, chance):
        match = self.match(chance)
        return [
            f"UPDATE t SET d = NOT coalesce(d, false) WHERE {match}",
            f"UPDATE t SET v = 'gone' WHERE {match}",
            f"UPDATE t SET b = NULL WHERE {match}",
            f"UPDATE t SET b = 1, d = false WHERE {match}",
        ]


class Cascades(Kind):
    """Rows that are deleted and changed with the rows that they refer to."""

    create = (
        "CREATE TABLE p (k text PRIMARY KEY)",
        "INSERT INTO p SELECT c || i FROM unnest('{a,ä,b}'::text[]) AS c, generate_series(0, 39) i",
        "CREATE TABLE t (k text PRIMARY KEY REFERENCES p ON UPDATE CASCADE ON DELETE CASCADE, "
        "v text)",
    )

    def more(self, chance):
        return [
            f"DELETE FROM p WHERE {self.match(chance)}",
            f"INSERT INTO p VALUES ({self.new_key(chance)}) ON CONFLICT DO NOTHING",
            f"UPDATE p SET k = {self.new_key(chance)} WHERE {self.match(chance)}",
        ]


class Partitions(Kind):
    """Rows that move between partitions, and partitions that come and go."""

    create = (
        "CREATE TABLE t (k integer PRIMARY KEY, v text) PARTITION BY RANGE (k)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (20)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (20) TO (2000) PARTITION BY RANGE (k)",
        "CREATE TABLE t21 PARTITION OF t2 FOR VALUES FROM (20) TO (30)",
        "CREATE TABLE t22 PARTITION OF t2 FOR VALUES FROM (30) TO (2000)",
        "CREATE TABLE spare (k integer PRIMARY KEY, v text)",
    )
    many = "k BETWEEN 1000 AND 2000"
    tables = ("t", "t", "t1", "t2", "t22")
    truncated = True

    def new_key(self, chance):
        return str(chance.randrange(45))

    def number(self, i):
        return str(i)

    def write(self, chance):
        return re.sub(r"MERGE INTO (t\d+)", r"MERGE INTO \1 AS t", super().write(chance))

    def more(self, chance):
        return [
            "UPDATE t SET k = k + 15 WHERE k < 5",
            *(["TRUNCATE t1"] if self.truncated else []),
            "INSERT INTO spare VALUES (2500, 'v') ON CONFLICT DO NOTHING",
            "DELETE FROM spare",
        ]

    def ddl(self, chance):
        return [
            "ALTER TABLE t ATTACH PARTITION spare FOR VALUES FROM (2000) TO (3000)",
            "ALTER TABLE t DETACH PARTITION spare",
            "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (3000) TO (4000); "
            "INSERT INTO t3 VALUES (3001, 'v')",
            "DROP TABLE t3",
        ]


KINDS = [Kind, Numbers, Tuples, Cascades, Partitions]

DDL = [
    "ALTER TABLE t ADD COLUMN IF NOT EXISTS extra integer",
    "ALTER TABLE t DROP COLUMN IF EXISTS extra",
    "ALTER TABLE t DISABLE TRIGGER USER; INSERT INTO t (v) VALUES ('v')",
    "ALTER TABLE t DISABLE TRIGGER USER; DELETE FROM t; ALTER TABLE t ENABLE TRIGGER USER",
    "ALTER TABLE t ENABLE TRIGGER USER",
    "DROP TRIGGER IF EXISTS {base}_delete ON t",
    "VACUUM FULL t",
    "TRUNCATE t",
    "SELECT setval('{base}_until', 0)",
    "SELECT setval('{base}_until', 0)",
    "SELECT nextval('{base}_ring')",
]


class Session:
    """A connection of a stranger."""

    def __init__(self, url, schema, chance):
        self.db = psycopg.connect(f"{url} options='-c search_path={schema}'", autocommit=True)
        self.db.execute("SET lock_timeout = 30")
        self.chance, self.open = chance, False

    def run(self, statement):
        try:
            self.db.execute(statement)
        except psycopg.Error:
            if self.db.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
                self.db.execute("ROLLBACK")
                self.open = False

    def step(self, kind):
        chance = self.chance
        if not self.open and chance.random() < 0.4:
            level = chance.choice(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
            self.run(f"BEGIN ISOLATION LEVEL {level}")
            self.open = True
            if kind.replicated and chance.random() < 0.15:
                self.run("SET LOCAL session_replication_role = replica")
        elif self.open and chance.random() < 0.3:
            name = f"tamis {chance.randrange(10**9)}"
            self.run(chance.choice(["COMMIT"] * 4 + ["ROLLBACK", f"PREPARE TRANSACTION '{name}'"]))
            self.open = self.db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
        elif self.open and chance.random() < 0.2:
            self.run("SAVEPOINT s")
            self.run(kind.write(chance))
            if self.open and chance.random() < 0.6:
                self.run("ROLLBACK TO s")
        elif not self.open and chance.random() < 0.1:
            values = kind.row(chance, kind.number(chance.randrange(900, 990)))
            line = values.strip("()").replace("'", "").replace(", ", "\t") + "\n"
            with (
                suppress(psycopg.Error),
                self.db.cursor().copy(f"COPY t ({kind.columns}) FROM STDIN") as copy,
            ):
                copy.write(line)
        else:
            self.run(kind.write(chance))


def finish_prepared(db, chance, end):
    for (name,) in db.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
        if end or chance.random() < 0.2:
            with suppress(psycopg.errors.ObjectNotInPrerequisiteState):  # it is being prepared
                db.execute(f"{chance.choice(['COMMIT', 'ROLLBACK'])} PREPARED '{name}'")


class Model:
    """The keys of a table, by following it."""

    def __init__(self, store):
        self.store, self.keys, self.position = store, None, None
        self.followed = self.rebuilt = 0

    def look(self):
        """Return whether the keys are known."""
        try:
            changes = self.position and self.store.changes(self.position, limit=None)
            if changes is None or self.position is None:
                self.keys = self.position = None
                position, parts = self.store.contents()
                self.keys = {key for part in parts for key in part}
                self.position = position
                self.rebuilt += 1
                return True
        except tamis.StoreError:  # a writer is still there, or the schema is not as it was
            return False
        self.apply(changes)
        return True

    def apply(self, changes):
        added, removed = set(changes.added), set(changes.removed)
        assert len(added) == len(changes.added)
        assert not added & removed
        assert not added & self.keys, "added again"
        assert removed <= self.keys, "removed again"
        self.keys = (self.keys | added) - removed
        self.position = changes.position
        self.followed += 1


@pytest.fixture
def quickly(monkeypatch):
    """Journals are small, so that the ring turns; nobody is waited for longer than a moment."""
    monkeypatch.setattr(follower, "_FULL", 8192)
    monkeypatch.setattr(follower, "RENEW", 0.02)
    monkeypatch.setattr(follower.Follower, "_deadline", lambda self: time.monotonic() + 0.05)
    monkeypatch.setattr(follower, "_LOCK_TIMEOUT", 5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_keys_by_following_are_the_keys_of_the_table(postgres_url, cls, seed, quickly):  # noqa: F811
    chance, kind, schema = random.Random(seed), cls(), f"history{next(_schemas)}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {schema}")
        admin.execute(f"SET search_path = {schema}; SET lock_timeout = 30")
        for statement in cls.create:
            admin.execute(statement)
        names = {"table": f"{schema}.t", "value": "v", **cls.options}
        options = {"connections": 3, "timeout": 1.0}
        opened = [
            stores.Postgres(postgres_url, **names, **options, prepare=prepare)
            for prepare in (True, False)
        ]
        models = [Model(store) for store in opened]
        sessions = [Session(postgres_url, schema, chance) for _ in range(4)]
        base = opened[0]._base
        try:
            for step in range(STEPS):
                chance.choice(sessions).step(kind)
                finish_prepared(admin, chance, end=False)
                if chance.random() < 0.02:
                    statement = chance.choice(DDL + kind.ddl(chance)).format(base=base)
                    for each in statement.split("; "):
                        with suppress(psycopg.Error):
                            admin.execute(each)
                for model in models:
                    if chance.random() < 0.4 and model.look():
                        with suppress(psycopg.errors.LockNotAvailable):  # as by TRUNCATE
                            rows = admin.execute(cls.query).fetchall()
                            assert model.keys == {kind.plain(row) for row in rows}, step
            for session in sessions:
                session.run("COMMIT")
            finish_prepared(admin, chance, end=True)
            for model in models:
                for _ in range(100):
                    if model.look():
                        break
                rows = admin.execute(cls.query).fetchall()
                assert model.keys == {kind.plain(row) for row in rows}
                assert model.followed > STEPS / 20, (model.followed, model.rebuilt)
        finally:
            for each in (*sessions, *opened):
                getattr(each, "db", each).close()
            finish_prepared(admin, chance, end=True)


@pytest.mark.parametrize("cls", [Kind, Numbers, Tuples, Partitions], ids=lambda cls: cls.__name__)
def test_keys_by_following_while_others_commit(postgres_url, cls):  # noqa: F811
    """Look and query are two statements with one snapshot, while threads write."""
    kind, schema = cls(), f"history{next(_schemas)}"
    kind.truncated = False  # which shows in snapshots that were taken before
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {schema}")
        db.execute(f"SET search_path = {schema}")
        for statement in cls.create:
            db.execute(statement)
        names = {"table": f"{schema}.t", "value": "v", **cls.options}
        store = stores.Postgres(postgres_url, **names, timeout=1.0)
        model = Model(store)
        assert model.look()
        sessions = [Session(postgres_url, schema, random.Random(i)) for i in range(6)]

        def write(session):
            for _ in range(STEPS // 3):
                session.step(kind)
            session.run("COMMIT")

        threads = [threading.Thread(target=write, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        followed = store._followed._follower
        function = followed.definition.part("changes")
        query = f"SELECT key, net, state FROM {function}(%s::pg_snapshot)"
        try:
            while any(thread.is_alive() for thread in threads):
                position = follower.Position.parse(model.position)
                with db.transaction():
                    db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    changes = followed.to_changes(
                        position, db.execute(query, (position.snapshot,)).fetchall()
                    )
                    rows = db.execute(cls.query).fetchall()
                finish_prepared(db, random.Random(0), end=True)
                model.apply(changes)
                assert model.keys == {kind.plain(row) for row in rows}
        finally:
            for thread in threads:
                thread.join()
            for each in (*sessions, store):
                getattr(each, "db", each).close()
            finish_prepared(db, random.Random(0), end=True)
        assert model.followed
