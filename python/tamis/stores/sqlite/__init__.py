"""A table in an SQLite database."""

from tamis.stores.sqlite.store import SQLite

__all__ = ["SQLite"]
