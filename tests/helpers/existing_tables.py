"""Shared by the tests of stores."""

import itertools
import sqlite3

from servers import postgres_url  # noqa: F401

import tamis
from tamis import stores

_names = itertools.count()


def telescoping():
    return tamis.Telescoping(capacity=2000, fpr=2**-4)


class SQLiteDatabase:
    """A file, and a stranger's connection to it."""

    kind, mark, uuid = "SQLite", "?", "CHAR(32)"

    def __init__(self, path):
        self.where, self.schema = path, "main"
        self.db = sqlite3.connect(path, isolation_level=None)

    def __call__(self, statement, *parameters):
        return self.db.execute(statement, parameters).fetchall()

    def to_column(self, key):
        return key.hex

    def store(self, **names):
        return stores.SQLite(self.where, **names)


class PostgresDatabase:
    """A schema of its own in a database, and a stranger's connection to it."""

    kind, mark, uuid = "Postgres", "%s", "uuid"

    def __init__(self, url):
        import psycopg

        self.where, self.schema = url, f"app{next(_names)}"
        self.db = psycopg.connect(url, autocommit=True)
        self.db.execute(f"CREATE SCHEMA {self.schema}")
        self.db.execute(f"SET search_path = {self.schema}")

    def __call__(self, statement, *parameters):
        cursor = self.db.execute(statement.replace("?", "%s") if parameters else statement,
                                 parameters or None)  # fmt: skip
        return cursor.fetchall() if cursor.description else []

    def to_column(self, key):
        return key

    def store(self, *, table, **names):
        return stores.Postgres(self.where, table=f"{self.schema}.{table}", **names)


def index_size(g):
    """The hashes in the index, after a change check, which reports what the guard has written."""
    g.driver.follow()
    return len(g.store.run(0, 2**64 - 1))
