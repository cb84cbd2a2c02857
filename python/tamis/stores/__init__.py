"""Stores that a guard can be put in front of: one adapter per database, one protocol.

`RocksDB`, `Redis` and `Postgres` need the extra of that name: ``pip install tamis[rocksdb]``.
"""

from tamis.errors import LeaseError, StoreError
from tamis.stores.contract import Changes, Commit, Store
from tamis.stores.memory import Hashes, Memory
from tamis.stores.postgres import Postgres
from tamis.stores.redis import Redis
from tamis.stores.rocksdb import RocksDB
from tamis.stores.sqlite import SQLite

__all__ = [
    "Changes",
    "Commit",
    "Hashes",
    "LeaseError",
    "Memory",
    "Postgres",
    "Redis",
    "RocksDB",
    "SQLite",
    "Store",
    "StoreError",
]
