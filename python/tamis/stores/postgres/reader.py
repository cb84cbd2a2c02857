"""Reads of `tamis.stores.Postgres` through psycopg's asynchronous connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tamis.stores.base import PlainKey, Value, store_error

if TYPE_CHECKING:
    from tamis.stores.postgres.store import Postgres


class PostgresReader:
    """Reads through a pool of asynchronous connections, which is open."""

    def __init__(self, store: Postgres, pool: Any) -> None:
        self._store, self._pool = store, pool

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
