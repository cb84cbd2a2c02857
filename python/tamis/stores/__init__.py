"""Stores for a guard: one folder per database, one contract (`base.py`).

`RocksDB`, `Redis`, `Postgres` and `MySQL` need the extra of that name, as in ``pip install
tamis[rocksdb]``.

A new store is a folder whose class has the members of `tamis.stores.Store`, plus two edits: its
name in this module, and its driver in the extras of ``pyproject.toml``. `tamis.testing.check_store`
tests it. `memory.py` is the shortest example. Stores that are tables of an SQL database derive from
`sql/journaled.py`. `lease.py` has leases, `encoding.py` the byte forms of keys, values and hashes,
`tail.py` the changes that an index does not have yet, `connections.py` addresses and forks.
"""

from tamis.errors import LeaseError, StoreError
from tamis.stores.base import Changes, Commit, Store
from tamis.stores.loader import Loader
from tamis.stores.memory import Hashes, Memory
from tamis.stores.mysql import MySQL
from tamis.stores.postgres import Postgres
from tamis.stores.redis import Redis
from tamis.stores.rocksdb import RocksDB
from tamis.stores.sqlite import SQLite

__all__ = [
    "Changes",
    "Commit",
    "Hashes",
    "LeaseError",
    "Loader",
    "Memory",
    "MySQL",
    "Postgres",
    "Redis",
    "RocksDB",
    "SQLite",
    "Store",
    "StoreError",
]
