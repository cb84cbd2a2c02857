"""A campaign of schemas and settings: they change at random under guards of existing tables.

PYTHONPATH=tests:tests/helpers python -m campaign.settings --steps 2000 --seed 1

Each step writes to the table, or changes the table, the rights, the guard's own objects or a
setting, by means of SQL. Then every key of a small universe is queried, and the guards' answers are
compared with the table. A guard may raise `tamis.StoreError`, and may refuse to be opened with a
`ValueError`; it must not deny a key that the table has, nor return one that it does not have.
"""

import argparse
import random
import sqlite3
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import pytest
import servers

import tamis
from tamis import stores

KEYS = [f"{prefix}{i}" for i in range(12) for prefix in ("k", "K", "é ")]
COPY = "swap"


def draw(chance, count=None):
    return chance.sample(KEYS, count or chance.randrange(1, 4))


class Table:
    """A table ``t (k, v)`` of one engine, the statements that change it, and how to read it."""

    options: ClassVar = {"table": "t", "key": "k", "value": "v"}

    def writes(self, chance):
        """Return some statements that write rows."""
        a, *more = draw(chance)
        values = ", ".join(f"('{key}', 'v')" for key in [a, *more])
        return chance.choice(
            [
                [self.insert.format(values)],
                [self.insert.format(values)],
                [f"DELETE FROM t WHERE k IN ('{a}', '{a.lower()}')"],
                [f"UPDATE t SET k = '{a}' WHERE k = '{chance.choice(KEYS)}'"],
                ["BEGIN", self.insert.format(values), "ROLLBACK"],
                ["BEGIN", f"DELETE FROM t WHERE k = '{a}'", self.insert.format(values), "COMMIT"],
                [f"UPDATE t SET v = 'w' WHERE k > '{a}'"],
            ]
        )

    def run(self, statements):
        """Run statements; return the error if the database refuses one."""
        for statement in statements:
            try:
                self.execute(statement)
            except self.errors as error:
                with suppress(*self.errors):
                    self.execute("ROLLBACK")
                return error
        return None


class Postgres(Table):
    insert = "INSERT INTO t VALUES {} ON CONFLICT DO NOTHING"
    create = "CREATE TABLE {} (k text PRIMARY KEY, v text)"

    changes: ClassVar = {
        "disable triggers": ["ALTER TABLE t DISABLE TRIGGER USER"],
        "enable triggers": ["ALTER TABLE t ENABLE TRIGGER USER"],
        "write as a replica": [
            "SET session_replication_role = replica",
            "INSERT INTO t VALUES ('k7', 'r') ON CONFLICT DO NOTHING",
            "DELETE FROM t WHERE k = 'K7'",
            "RESET session_replication_role",
        ],
        "drop a trigger": ["DROP TRIGGER tamis_t_insert ON t"],
        "TRUNCATE": ["TRUNCATE t"],
        "TRUNCATE and write": ["BEGIN", "TRUNCATE t", "INSERT INTO t VALUES ('k1', '')", "COMMIT"],
        "rename the column": ["ALTER TABLE t RENAME k TO renamed"],
        "rename it back": ["ALTER TABLE t RENAME renamed TO k"],
        "change the type": ["ALTER TABLE t ALTER k TYPE varchar(40)"],
        "change it back": ["ALTER TABLE t ALTER k TYPE text"],
        "add a column": ["ALTER TABLE t ADD more integer DEFAULT 5"],
        "drop a column": ["ALTER TABLE t DROP more"],
        "rewrite": ["VACUUM FULL t"],
        "swap": [
            f"CREATE TABLE {COPY} (LIKE t INCLUDING ALL)",
            f"INSERT INTO {COPY} SELECT * FROM t",
            f"INSERT INTO {COPY} (k, v) VALUES ('k3', '') ON CONFLICT DO NOTHING",
            "DROP TABLE t",
            f"ALTER TABLE {COPY} RENAME TO t",
        ],
        "restore": [
            "DROP TABLE IF EXISTS backup",
            "CREATE TABLE backup AS SELECT k, v FROM t",
            "INSERT INTO t VALUES ('K5', '') ON CONFLICT DO NOTHING",
            "BEGIN",
            "DELETE FROM t",
            "INSERT INTO t (k, v) SELECT * FROM backup",
            "COMMIT",
        ],
        "create again": ["DROP TABLE IF EXISTS t", create.format("t")],
        "nondeterministic collation": ["ALTER TABLE t ALTER k TYPE text COLLATE caseless"],
        "collation C": ['ALTER TABLE t ALTER k TYPE text COLLATE "C"'],
        "add a child": [
            "CREATE TABLE child () INHERITS (t)",
            "INSERT INTO child VALUES ('k9', 'child')",
        ],
        "drop the child": ["DROP TABLE child"],
        "partition": [
            "DROP TABLE IF EXISTS child, spare CASCADE",
            "ALTER TABLE t RENAME TO old",
            "CREATE TABLE t (k text PRIMARY KEY, v text) PARTITION BY LIST (left(k, 1))",
        ],
        "partition by hash": [
            "DROP TABLE IF EXISTS t, child, spare CASCADE",
            "CREATE TABLE t (k text PRIMARY KEY, v text) PARTITION BY HASH (k)",
            "CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
            "CREATE TABLE spare PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        ],
        "detach and write": [
            "ALTER TABLE t DETACH PARTITION spare",
            "INSERT INTO spare SELECT k, v FROM (VALUES ('k2', ''), ('k4', ''), ('é 4', '')) AS n "
            "(k, v) WHERE satisfies_hash_partition('t'::regclass, 2, 1, k) ON CONFLICT DO NOTHING",
        ],
        "attach": ["ALTER TABLE t ATTACH PARTITION spare FOR VALUES WITH (MODULUS 2, REMAINDER 1)"],
        "write to a partition": ["INSERT INTO spare SELECT k, v FROM t ON CONFLICT DO NOTHING"],
        "drop the index": ["ALTER TABLE t DROP CONSTRAINT t_pkey"],
        "add the index": ["ALTER TABLE t ADD PRIMARY KEY (k)"],
        "hide rows": [
            "DROP POLICY IF EXISTS some ON t",
            "CREATE POLICY some ON t USING (k < 'k5')",
            "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE t FORCE ROW LEVEL SECURITY",
        ],
        "show rows": [
            "ALTER TABLE t DISABLE ROW LEVEL SECURITY",
            "ALTER TABLE t NO FORCE ROW LEVEL SECURITY",
        ],
        "change the owner": ["ALTER TABLE t OWNER TO tamis", "GRANT SELECT ON t TO app"],
        "change it back to app": ["ALTER TABLE t OWNER TO app"],
        "revoke the journal": ["REVOKE ALL ON tamis_t_journal0 FROM app"],
        "grant the journal": ["GRANT ALL ON tamis_t_journal0 TO app"],
        "drop a journal": ["DROP TABLE tamis_t_journal1"],
        "empty the state": ["DELETE FROM tamis_t_state"],
        "empty the followers": ["DELETE FROM tamis_t_followers"],
        "end the activation": [
            "SELECT setval('tamis_t_until', 0)",
            "INSERT INTO t VALUES ('k6', '') ON CONFLICT DO NOTHING",
        ],
        "drop the meta": ["DROP TABLE tamis_t_meta"],
        "two-phase commit": [
            "BEGIN",
            "INSERT INTO t VALUES ('k8', '') ON CONFLICT DO NOTHING",
            "PREPARE TRANSACTION 'p'",
            "COMMIT PREPARED 'p'",
        ],
        "serializable": [
            "ALTER DATABASE postgres SET default_transaction_isolation = serializable"
        ],
        "repeatable read": [
            "ALTER DATABASE postgres SET default_transaction_isolation = 'repeatable read'"
        ],
        "read only": ["ALTER ROLE app SET default_transaction_read_only = on"],
        "usual settings": [
            "ALTER DATABASE postgres RESET ALL",
            "ALTER ROLE app RESET ALL",
        ],
        "search path": ["ALTER ROLE app SET search_path = public, pg_temp"],
        "lose connections": [
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'"
        ],
    }

    def __init__(self, stack, chance):
        import psycopg

        self.errors = (psycopg.Error,)
        command, url = stack.enter_context(servers._postgres_command())
        ready = lambda: psycopg.connect(url).close()  # noqa: E731
        stack.enter_context(servers._running(command, ready))
        self.url = url.replace("user=tamis", "user=app")
        self.db = stack.enter_context(psycopg.connect(url, autocommit=True))
        self.execute = self.db.execute
        for statement in (
            "CREATE ROLE app LOGIN",
            "GRANT ALL ON SCHEMA public TO app",
            "GRANT app TO tamis",
            "CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', "
            "deterministic = false)",
        ):
            self.execute(statement)
        self.reset()
        self.connect = psycopg.connect
        self.pooler = stack.enter_context(pooler(self.url))

    def reset(self):
        self.run(["DROP TABLE IF EXISTS t, old, child, spare, t0, backup, swap CASCADE"])
        self.run([self.create.format("t"), "ALTER TABLE t OWNER TO app"])

    def open(self, chance):
        pooled = self.pooler is not None and chance.random() < 0.3
        url = self.pooler if pooled else self.url
        return stores.Postgres(url, **self.options, timeout=2.0, prepare=not pooled)

    def present(self):
        query = "SELECT u FROM unnest(%s::text[]) AS u WHERE EXISTS (SELECT FROM t WHERE t.k = u)"
        with self.connect(self.url) as reader:
            return {key for (key,) in reader.execute(query, (KEYS,)).fetchall()}


@contextmanager
def pooler(url):
    """PgBouncer in transaction mode before a server, if it is installed; its connection string."""
    import shutil

    import psycopg

    program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if program is None:
        yield None
        return
    fields = psycopg.conninfo.conninfo_to_dict(url)
    with tempfile.TemporaryDirectory() as folder, servers.reserve_port() as reserved:
        port, path = servers.port_of(reserved), Path(folder)
        reserved.close()  # which PgBouncer does not share
        path.chmod(0o755)
        (path / "users").write_text('"app" ""\n')
        (path / "ini").write_text(
            f"[databases]\n* = host={fields['host']} port={fields['port']}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = trust\nunix_socket_dir =\n"
            f"pool_mode = transaction\nauth_file = {path}/users\nmax_client_conn = 200\n"
            "ignore_startup_parameters = extra_float_digits\n"
        )
        db = url.replace(f"port={fields['port']}", f"port={port}")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        ready = lambda: psycopg.connect(db).close()  # noqa: E731
        with servers._running([*as_user, program, "-q", str(path / "ini")], ready):
            yield db


class SQLite(Table):
    insert = "INSERT OR IGNORE INTO t (k, v) VALUES {}"
    create = "CREATE TABLE {} (k TEXT PRIMARY KEY, v TEXT)"
    errors = (sqlite3.Error,)

    changes: ClassVar = {
        "drop a trigger": ["DROP TRIGGER tamis_t_insert"],
        "drop another": ["DROP TRIGGER tamis_t_delete"],
        "replace": ["INSERT OR REPLACE INTO t (k, v) VALUES ('k7', ''), ('K7', '')"],
        "update or replace": ["UPDATE OR REPLACE t SET k = 'k2' WHERE k = 'k3'"],
        "recursive triggers": ["PRAGMA recursive_triggers = ON"],
        "no recursive triggers": ["PRAGMA recursive_triggers = OFF"],
        "rename the column": ["ALTER TABLE t RENAME k TO renamed"],
        "rename it back": ["ALTER TABLE t RENAME renamed TO k"],
        "add a column": ["ALTER TABLE t ADD more INTEGER DEFAULT 5"],
        "drop a column": ["ALTER TABLE t DROP more"],
        "delete all": ["DELETE FROM t"],
        "VACUUM": ["VACUUM"],
        "rollback journal": ["PRAGMA journal_mode = DELETE"],
        "WAL": ["PRAGMA journal_mode = WAL"],
        "migrate": [
            create.format(COPY),
            f"INSERT INTO {COPY} SELECT k, v FROM t",
            f"INSERT OR IGNORE INTO {COPY} VALUES ('k3', '')",
            "DROP TABLE t",
            f"ALTER TABLE {COPY} RENAME TO t",
        ],
        "migrate without rowids": [
            create.format(COPY) + " WITHOUT ROWID",
            f"INSERT INTO {COPY} SELECT k, v FROM t",
            "DROP TABLE t",
            f"ALTER TABLE {COPY} RENAME TO t",
        ],
        "migrate to NOCASE": [
            f"CREATE TABLE {COPY} (k TEXT COLLATE NOCASE PRIMARY KEY, v TEXT)",
            f"INSERT OR IGNORE INTO {COPY} SELECT k, v FROM t",
            "DROP TABLE t",
            f"ALTER TABLE {COPY} RENAME TO t",
        ],
        "create again": ["DROP TABLE IF EXISTS t", create.format("t")],
        "not UTF-8": ["INSERT OR IGNORE INTO t (k, v) VALUES (CAST(x'80' AS TEXT), '')"],
        "blobs": ["INSERT OR IGNORE INTO t (k, v) VALUES (CAST('k9' AS BLOB), '')"],
        "blobs to text": ["UPDATE OR IGNORE t SET k = CAST(k AS TEXT) WHERE typeof(k) = 'blob'"],
        "drop the journal": ["DROP TABLE tamis_t_journal"],
        "empty the journal": ["DELETE FROM tamis_t_journal"],
        "drop the meta": ["DROP TABLE tamis_t_meta"],
        "second unique index": ["CREATE UNIQUE INDEX IF NOT EXISTS v_index ON t (v) WHERE v = 'u'"],
        "replace by it": ["INSERT OR REPLACE INTO t (k, v) VALUES ('k8', 'u')"],
        "replace by it again": ["INSERT OR REPLACE INTO t (k, v) VALUES ('K8', 'u')"],
        "backup": "backup",
        "restore": "restore",
    }

    def __init__(self, stack, chance):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.path, self.saved = folder / "data.db", folder / "saved.db"
        self.db = sqlite3.connect(self.path, isolation_level=None, timeout=5)
        stack.callback(self.db.close)
        self.reset()

    def execute(self, statement):
        if statement in ("backup", "restore"):
            saved = sqlite3.connect(self.saved)
            pair = (self.db, saved) if statement == "backup" else (saved, self.db)
            if statement == "backup" or self.saved.stat().st_size:
                pair[0].backup(pair[1])
            saved.close()
        else:
            self.db.execute(statement)

    def reset(self):
        self.run(["DROP TABLE IF EXISTS t", "DROP TABLE IF EXISTS swap"])
        self.run([self.create.format("t")])

    def open(self, chance):
        return stores.SQLite(self.path, **self.options, timeout=2.0)

    def present(self):
        found = set()
        for key in KEYS:
            query = "SELECT 1 FROM t WHERE k IN (?, ?)"
            if self.db.execute(query, (key, key.encode())).fetchone():
                found.add(key)
        return found


class MariaDB(Table):
    insert = "INSERT IGNORE INTO t (k, v) VALUES {}"
    create = "CREATE TABLE {} (k VARCHAR(40) COLLATE utf8mb4_nopad_bin PRIMARY KEY, v TEXT)"

    changes: ClassVar = {
        "replace": ["REPLACE INTO t (k, v) VALUES ('k7', 'x'), ('K7', 'x')"],
        "TRUNCATE": ["TRUNCATE t"],
        "TRUNCATE and write": ["TRUNCATE t", "INSERT INTO t (k, v) VALUES ('k1', '')"],
        "drop a trigger": ["DROP TRIGGER tamis_t_insert"],
        "add a column": ["ALTER TABLE t ADD more INTEGER DEFAULT 5"],
        "drop a column": ["ALTER TABLE t DROP more"],
        "caseless": ["ALTER TABLE t MODIFY k VARCHAR(40) COLLATE utf8mb4_general_ci"],
        "bytes": ["ALTER TABLE t MODIFY k VARCHAR(40) COLLATE utf8mb4_nopad_bin"],
        "longer": ["ALTER TABLE t MODIFY k VARCHAR(60) COLLATE utf8mb4_nopad_bin"],
        "swap": [
            "DROP TABLE IF EXISTS old",
            f"CREATE TABLE {COPY} LIKE t",
            f"INSERT INTO {COPY} SELECT * FROM t",
            f"INSERT IGNORE INTO {COPY} (k, v) VALUES ('k3', '')",
            f"RENAME TABLE t TO old, {COPY} TO t",
        ],
        "create again": ["DROP TABLE IF EXISTS t", create.format("t")],
        "rename": ["RENAME TABLE t TO away"],
        "rename back": ["RENAME TABLE away TO t"],
        "read uncommitted": ["SET GLOBAL TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"],
        "serializable": ["SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE"],
        "repeatable read": ["SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ"],
        "SQL mode": ["SET GLOBAL sql_mode = 'ANSI'"],
        "usual SQL mode": ["SET GLOBAL sql_mode = DEFAULT"],
        "empty the journal": ["DELETE FROM tamis_t_journal"],
        "drop the journal": ["DROP TABLE tamis_t_journal"],
        "drop the state": ["DROP TABLE tamis_t_state"],
        "cascade": [
            "CREATE TABLE parent (k VARCHAR(40) COLLATE utf8mb4_nopad_bin PRIMARY KEY)",
            "INSERT INTO parent SELECT k FROM t",
            "ALTER TABLE t ADD FOREIGN KEY up (k) REFERENCES parent (k) "
            "ON DELETE CASCADE ON UPDATE CASCADE",
        ],
        "change the parent": ["UPDATE parent SET k = CONCAT('K', SUBSTRING(k, 2)) WHERE k > 'k5'"],
        "end the cascade": ["ALTER TABLE t DROP FOREIGN KEY up", "DROP TABLE parent"],
        "optimize": ["OPTIMIZE TABLE t"],
    }

    def __init__(self, stack, chance):
        import pymysql

        self.errors = (pymysql.MySQLError,)
        command, self.url = stack.enter_context(servers._mysql_command())
        ready = lambda: servers._create_database(self.url)  # noqa: E731
        stack.enter_context(servers._running(command, ready))
        self.db = servers.connect_mysql(self.url)
        stack.callback(self.db.close)
        self.reset()

    def execute(self, statement):
        with self.db.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()

    def reset(self):
        self.run(["DROP TABLE IF EXISTS t, old, away, swap"])
        self.run(["DROP TABLE IF EXISTS parent"])
        self.run([self.create.format("t")])

    def open(self, chance):
        return stores.MySQL(self.url, **self.options, timeout=2.0)

    def present(self):
        query = "SELECT EXISTS (SELECT 1 FROM t WHERE k = '{}')"
        return {key for key in KEYS if self.execute(query.format(key))[0][0]}


TABLES = {"Postgres": Postgres, "SQLite": SQLite, "MariaDB": MariaDB}
FILTERS = (
    lambda: tamis.Bloom(capacity=1000, fpr=0.01),
    lambda: tamis.Telescoping(capacity=1000, fpr=2**-8),
    lambda: tamis.Quotient(capacity=1000, fpr=2**-8),
)


class Campaign:
    """Guards of one table, the steps so far, and what was found."""

    def __init__(self, table, chance):
        self.table, self.chance = table, chance
        self.guards, self.log = [], []
        self.counts, self.wrong = Counter(), []

    def step(self):
        chance, table = self.chance, self.table
        if len(self.guards) < 2 or chance.random() < 0.05:
            self.open()
        if chance.random() < 0.06:
            self.close()
            table.reset()
            self.log.append("reset")
        for _ in range(chance.randrange(1, 3)):
            name, statements = "write", table.writes(chance)
            if chance.random() < 0.4:
                name, statements = chance.choice([*table.changes.items()])
                statements = [statements] if isinstance(statements, str) else statements
            error = table.run(statements)
            self.log.append(f"{name}: {statements}{f' ({error})' if error else ''}")
            self.counts[f"{name}{' (refused)' if error else ''}"] += 1
        self.put()
        self.compare()

    def open(self):
        chance = self.chance
        self.close(keep=1)
        store = None
        try:
            options = {"on_failure": chance.choice(["raise", "pass"]), "lease": 1.0}
            store = self.table.open(chance)
            self.guards.append(tamis.Guard(store, chance.choice(FILTERS)(), **options))
            self.log.append(f"open {self.guards[-1]!r} {options}")
        except (ValueError, tamis.StoreError) as error:
            if store is not None:
                store.close()
            self.counts["not opened"] += 1
            self.log.append(f"not opened: {error}")

    def close(self, keep=0):
        while len(self.guards) > keep:
            g = self.guards.pop(0)
            with suppress(tamis.StoreError):
                g.close()
            g.store.close()

    def put(self):
        if self.guards and self.chance.random() < 0.2:
            key, g = self.chance.choice(KEYS), self.chance.choice(self.guards)
            try:
                g.put(key, "put")
                self.log.append(f"put {key!r}")
            except (tamis.StoreError, ValueError, *self.table.errors) as error:
                self.log.append(f"put {key!r} refused: {error}")

    def compare(self):
        """Compare all answers with the table, which nobody writes meanwhile."""
        try:
            present = self.table.present()
        except self.table.errors:
            return  # no such table or column, or no right to read it
        for g in self.guards:
            for key in KEYS:
                try:
                    found = g.get(key) is not None
                except tamis.StoreError:
                    self.counts["raised"] += 1
                    break
                self.counts["answers"] += 1
                if found != (key in present):
                    kind = "denied" if key in present else "invented"
                    self.wrong.append(f"{kind} {key!r} by {g!r}")


def run(name, steps, seed):
    """Run a campaign on one engine; return it, with a log that ends at the first wrong answer."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        campaign = Campaign(TABLES[name](stack, chance), chance)
        stack.callback(campaign.close)
        for _ in range(steps):
            campaign.step()
            if campaign.wrong:
                break
        return campaign


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tables", nargs="+", choices=[*TABLES], default=[*TABLES])
    options = parser.parse_args()
    failed = False
    for name in options.tables:
        try:
            campaign = run(name, options.steps, options.seed)
        except pytest.skip.Exception as skipped:
            print(f"{name}: skipped: {skipped}")
            continue
        counts = campaign.counts
        total = sum(n for what, n in counts.items() if what not in ("answers", "raised"))
        print(
            f"{name}, seed {options.seed}: {total} changes, {counts['answers']} answers compared, "
            f"{counts['raised']} guards raised, {counts['not opened']} not opened, "
            f"{len(campaign.wrong)} wrong",
            flush=True,
        )
        if campaign.wrong:
            failed = True
            print("\n".join([*campaign.log[-40:], *campaign.wrong]))
    return failed


if __name__ == "__main__":
    sys.exit(main())
