"""A table in a PostgreSQL database (``pip install tamis[postgres]``)."""

from tamis.stores.postgres.store import Postgres

__all__ = ["Postgres"]
