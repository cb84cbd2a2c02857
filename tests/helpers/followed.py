"""Shared by the tests of PostgreSQL tables that others write."""

import itertools

import psycopg

import tamis
from tamis import stores

_schemas = itertools.count()


class Table:
    """A table in a schema of its own, the connection of a stranger, and stores."""

    def __init__(self, url):
        self.url, self.schema, self.stores = url, f"followed{next(_schemas)}", []
        self.db = self.connect()
        self.db.execute(f"CREATE SCHEMA {self.schema}")
        self.db.execute("CREATE TABLE t (k text PRIMARY KEY, v text)")
        self.db.execute("INSERT INTO t VALUES ('a', '1'), ('b', '2')")

    def connect(self, options=""):
        path = f"options='-c search_path={self.schema} {options}'"
        return psycopg.connect(f"{self.url} {path}", autocommit=True)

    def __call__(self, statement):
        cursor = self.db.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def store(self, conninfo=None, **options):
        names = {"table": f"{self.schema}.t", "key": "k", "value": "v"}
        store = stores.Postgres(conninfo or self.url, **(names | options))
        self.stores.append(store)
        return store

    def close(self):
        for store in self.stores:
            store.close()
        self.db.close()


def read(store):
    """Return a position and the keys at that position."""
    position, parts = store.contents()
    return position, {key for part in parts for key in part}


def hasher(keys):
    return tamis.hash_keys(keys, seed=1)


def indexed(store):
    return {tuple(row) for part in store.scan() for row in part.tolist()}


def hashes(*keys):
    return {*map(tuple, hasher(list(keys)).tolist())}
