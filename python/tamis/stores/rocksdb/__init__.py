"""A RocksDB database (``pip install tamis[rocksdb]``)."""

from tamis.stores.rocksdb.store import RocksDB

__all__ = ["RocksDB"]
