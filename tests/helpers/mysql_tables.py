"""Tables of MariaDB that others write, and sets of keys that follow them."""

import itertools

from servers import connect_mysql

from tamis import stores
from tamis.stores.mysql.position import Position

_names = itertools.count()
TEXT = "VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"


class Table:
    """A table and connections to its database."""

    def __init__(self, url, columns=f"id {TEXT} PRIMARY KEY, seen TEXT", options="", name=None):
        self.url, self.name, self._opened = url, name or f"visits {next(_names)}", []
        self.key, self.value, self.where = "id", "seen", None
        self.db = self.connect()
        self.run(f"CREATE TABLE `{self.name}` ({columns}) {options}")

    def connect(self, **options):
        db = connect_mysql(self.url, **options)
        self._opened.append(db)
        return db

    def run(self, statement, arguments=None, db=None):
        with (db or self.db).cursor() as cursor:
            cursor.execute(statement.replace("TABLE_NAME", f"`{self.name}`"), arguments)
            return cursor.fetchall()

    def insert(self, *keys, db=None):
        for key in keys:
            self.run("INSERT INTO TABLE_NAME (id, seen) VALUES (%s, 'x')", (key,), db)

    def store(self, url=None, **options):
        options = {"key": self.key, "value": self.value, "where": self.where, **options}
        store = stores.MySQL(url or self.url, table=self.name, **options)
        self._opened.append(store)
        return store

    def keys(self, store):
        names = (self.key,) if isinstance(self.key, str) else self.key
        columns = ", ".join(f"`{name}`" for name in names)
        present = " AND ".join(f"`{name}` IS NOT NULL" for name in names)
        query = f"SELECT {columns} FROM TABLE_NAME WHERE {present} AND {self.where or 'TRUE'}"
        return {store.to_plain(row if len(row) > 1 else row[0]) for row in self.run(query)}

    def close(self):
        for each in self._opened:
            if isinstance(each, stores.MySQL) or each.open:
                each.close()


class Follower:
    """A set of keys that follows a store by looks; it counts rebuilds."""

    def __init__(self, store):
        self.store, self.rebuilds = store, -1
        self.rebuild()

    def rebuild(self):
        self.position, parts = self.store.contents()
        keys = [key for part in parts for key in part]
        self.keys = set(keys)
        assert len(self.keys) == len(keys)
        self.rebuilds += 1

    def look(self, limit=None):
        while (changes := self.store.changes(self.position, limit)) is not None:
            assert not self.keys.intersection(changes.added)
            assert self.keys.issuperset(changes.removed)
            self.keys = self.keys.union(changes.added).difference(changes.removed)
            self.position = changes.position
            if not changes.more:
                return self.keys
        self.rebuild()
        return self.keys

    @property
    def gaps(self):
        return Position.parse(self.position).gaps


def prepare_insert(table, key):
    """Insert a key in a transaction that is prepared, and commits later on another connection."""
    db = table.connect()
    for statement in ("XA START 'x'", "INSERT INTO TABLE_NAME VALUES (%s, '')"):
        table.run(statement, (key,) if "%s" in statement else None, db)
    for statement in ("XA END 'x'", "XA PREPARE 'x'"):
        table.run(statement, db=db)
    db.close()
