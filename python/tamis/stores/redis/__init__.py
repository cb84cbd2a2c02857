"""Keys in a Redis database (``pip install tamis[redis]``)."""

from tamis.stores.redis.store import Redis

__all__ = ["Redis"]
