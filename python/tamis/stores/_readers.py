"""Reads of values with the asynchronous clients of Redis and PostgreSQL, for `tamis.AsyncGuard`.

A reader belongs to the event loop in which it was opened. It makes the same request as `get_many`
of its store, on connections of its own, and raises the same errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from tamis.stores._encoding import encode_keys
from tamis.stores._keyvalue import load_values
from tamis.stores.contract import PlainKey, Store, Value, store_error
from tamis.stores.postgres import Postgres
from tamis.stores.redis import Redis

_REDIS_CONNECTIONS = 32
"""Reads at once; more of them wait for their turn."""


class Reader(Protocol):
    """Reads the values of a store without a thread."""

    async def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""

    async def close(self) -> None:
        """Close the connections."""


async def open_reader(store: Store) -> Reader | None:
    """Return a reader for a store, or `None` if its driver has none."""
    # A subclass may read in another way.
    if type(store) is Redis:
        return RedisReader(store)
    if type(store) is Postgres:
        return await PostgresReader.open(store)
    return None


class RedisReader:
    """Reads through ``redis.asyncio``."""

    def __init__(self, store: Redis) -> None:
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._store = store
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            store._url,
            max_connections=_REDIS_CONNECTIONS,
            timeout=store._timeout,
            socket_timeout=store._timeout,
            socket_connect_timeout=store._timeout,
            retry=Retry(NoBackoff(), 0),
        )
        self._client: Any = redis.asyncio.Redis.from_pool(pool)

    async def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        with self._store._translated:
            found = await self._client.hmget(self._store._d, encode_keys(keys))
        return load_values(found)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class PostgresReader:
    """Reads through a pool of psycopg's asynchronous connections."""

    def __init__(self, store: Postgres, pool: Any) -> None:
        self._store, self._pool = store, pool

    @classmethod
    async def open(cls, store: Postgres) -> PostgresReader:
        """Open a pool for the event loop that is running."""
        pool = store._connections.asynchronous_pool()
        await pool.open()
        return cls(store, pool)

    async def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        store = self._store
        selection = store._selection(keys, store._v)
        if selection is None:
            return [None] * len(keys)
        # Longer than the time-out of the server, whose message says more if it still answers.
        timeout = store._connections.timeout
        limit = None if timeout is None else timeout + 1.0
        try:
            async with asyncio.timeout(limit):
                rows = await self._select(*selection)
        except TimeoutError as error:
            raise store_error(store._connections.where, error) from error
        except store._psycopg.OperationalError as error:
            store._connections.translate(error)
            raise
        return store._values_of(keys, rows)

    async def _select(self, query: str, arguments: list[Any]) -> list[Any]:
        """Run a query; retry once if its connection turns out to be closed."""
        for attempt in (1, 2):
            async with self._pool.connection() as db:
                try:
                    return list(await (await db.execute(query, arguments)).fetchall())
                except self._store._psycopg.OperationalError:
                    if attempt == 2 or not db.closed:
                        raise
            await self._pool.check()  # of the others, which are probably closed as well
        raise AssertionError

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()
