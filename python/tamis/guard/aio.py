"""`AsyncGuard`: a guard for asyncio.

It wraps a `Guard`, and takes the steps of its queries without blocking the event loop. A "no" of
the filter is answered without a task switch. Values are read with the asynchronous client of the
store, if it has one (`Store.open_reader`), and otherwise in a thread. Everything else that waits
for the store runs in a thread as well: change checks, adaptations, rebuilds.

Writes run one after another in one thread. A task that is cancelled stops waiting for its write,
but the write runs to its end if it has begun, and does not happen at all if it has not. So a write
is never half done, and writes are applied in the order in which they were made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tamis._checks import check_int
from tamis._native import key_list
from tamis.errors import StoreError
from tamis.guard.opening import check_is_store, closing_parts
from tamis.guard.statistics import GuardStats, Window
from tamis.guard.sync import Adapt, Guard, Read, Steps, read_pairs
from tamis.stores.base import GivenKey, GivenKeys, PlainKey, Reader, Store, Value

if TYPE_CHECKING:
    from tamis.guard.page import Page

_T = TypeVar("_T")


class AsyncGuard:
    """A filter in front of a store, for asyncio, with the guarantees of `tamis.Guard`.

    It takes the same arguments, and opens with ``async with``, or with the first call. ``threads``
    is how many calls can wait for the store at once, if it has no asynchronous client: Redis and
    Postgres have one, for reads. A guard belongs to one event loop.

    >>> import asyncio, tamis
    >>> async def main():
    ...     async with AsyncGuard(tamis.stores.Memory(), tamis.Quotient(1000, fpr=2**-8)) as g:
    ...         await g.put("ada", "1815")
    ...         return await g.get("ada"), await g.get("alan"), g.stats.reads_saved
    >>> asyncio.run(main())
    ('1815', None, 1)
    """

    def __init__(
        self, store: Store, filter: Any = None, *, threads: int = 8, **options: Any
    ) -> None:
        """Prepare a guard; the store is first used by ``async with``, or by the first call."""
        check_is_store(store)
        threads = check_int("threads", threads, 4096, minimum=1)
        self.store = store
        self.name: str = options.get("name", "guard")
        self._arguments = (filter, options)
        self._guard: Guard | None = None
        """The guard, while this one is open."""
        self._closed_guard: Guard | None = None
        self._reader: Reader | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which this guard was opened."""
        self._opening: asyncio.Task[Guard] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(threads, "tamis-async")
        self._writer = ThreadPoolExecutor(1, "tamis-async-write")

    async def open(self) -> Self:
        """Open the guard, if it is not open yet."""
        await self._open()
        return self

    async def _open(self) -> Guard:
        if self._closing is not None:
            raise ValueError("the guard is closed")
        if self._guard is not None:
            return self._guard
        if self._opening is None or (self._opening.done() and self._guard is None):
            self._opening = asyncio.create_task(self._open_once())
        # A task that is cancelled must not cancel the opening for the others.
        return await asyncio.shield(self._opening)

    async def _open_once(self) -> Guard:
        filter, options = self._arguments
        guard = await self._in_writer(lambda: Guard(self.store, filter, **options))
        try:
            self._reader = await self.store.open_reader()
        except BaseException:
            # The next attempt is another owner, which would have to wait for the lease.
            await self._in_writer(guard.driver.close)
            raise
        self._guard, self._loop = guard, asyncio.get_running_loop()
        return guard

    # Queries.

    async def get(self, key: GivenKey) -> Value | None:
        """Return the value of a key, or `None` if it is absent."""
        guard = self._guard
        if guard is None:
            guard = await self._open()
        lookup = guard.lookup(guard.to_plain(key) if guard.translates else key)
        if lookup is None and guard.on_query is None:
            return None
        return await self._take(guard, guard.get_steps(key, lookup))

    async def get_many(self, keys: GivenKeys) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent.

        Each distinct key that the filter accepts is read once.
        """
        guard = self._guard or await self._open()
        values: list[Value | None] = await self._take(guard, guard.get_many_steps(keys))
        return values

    async def maybe(self, key: GivenKey) -> bool:
        """Return whether the store may have a key, without reading its value."""
        guard = self._guard or await self._open()
        lookup = guard.lookup(guard.to_plain(key) if guard.translates else key)
        maybe: bool = await self._take(guard, guard.maybe_steps(key, lookup))
        return maybe

    async def maybe_many(self, keys: GivenKeys) -> list[bool]:
        """Return for each key whether the store may have it."""
        guard = self._guard or await self._open()
        maybe: list[bool] = await self._take(guard, guard.maybe_many_steps(keys))
        return maybe

    async def _take(self, guard: Guard, steps: Steps) -> Any:
        """Take the steps of a query; other tasks run while it waits."""
        answer: Any = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, Read):
                    answer = await self._read(step.keys)
                elif isinstance(step, Adapt):
                    answer = await self._in_thread(partial(guard.adapt, step))
                else:
                    answer = await self._in_thread(guard.driver.refresh)
        except StopIteration as end:
            return end.value
        except StoreError:
            guard.count_error(step)
            raise

    async def _read(self, keys: list[PlainKey]) -> list[Value | None]:
        if self._reader is not None:
            self._check_loop()
            return await self._reader.get_many(keys)
        return await self._in_thread(lambda: self.store.get_many(keys))

    async def contains(self, key: GivenKey) -> bool:
        """Return whether the store has a key."""
        return await self.get(key) is not None

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the keys of the store, text as bytes."""
        guard = await self._open()
        _, parts = await self._in_thread(self.store.contents)
        from_plain = self.store.from_plain if guard.translates else None  # type: ignore[attr-defined]
        with closing_parts(parts):
            while (part := await self._in_thread(lambda: next(parts, None))) is not None:
                for key in part:
                    yield key if from_plain is None else from_plain(key)

    # Writes.

    async def put(self, key: GivenKey, value: Value) -> None:
        """Write a key and its value."""
        await self.put_many([(key, value)])

    async def put_many(self, items: Any) -> None:
        """Write keys and values, given as a mapping or as pairs, in one commit."""
        guard = await self._open()
        pairs = [*zip(*read_pairs(items), strict=True)]
        await self._in_writer(lambda: guard.put_many(pairs))

    async def delete(self, key: GivenKey) -> bool:
        """Delete a key; return whether it was present."""
        guard = await self._open()
        return await self._in_writer(lambda: guard.delete(key))

    async def delete_many(self, keys: GivenKeys) -> list[bool]:
        """Delete keys in one commit; return for each whether it was present."""
        guard = await self._open()
        given: Any = key_list(keys)
        return await self._in_writer(lambda: guard.delete_many(given))

    # State.

    @property
    def guard(self) -> Guard:
        """The guard that this one answers by, once it is open."""
        guard = self._guard or self._closed_guard
        if guard is None:
            raise ValueError("the guard is not open yet: use async with, or await open()")
        return guard

    @property
    def filter(self) -> Any:
        """The current filter; a rebuild replaces it with a new one."""
        return self.guard.filter

    @property
    def chosen(self) -> str | None:
        """Which filter was chosen, and why; `None` if one was passed in."""
        return self.guard.chosen

    @property
    def stats(self) -> GuardStats:
        """Counts of queries, reads saved and false positives so far."""
        return self.guard.stats

    @property
    def history(self) -> list[Window]:
        """The false-positive rate over time, in windows of consecutive queries."""
        return self.guard.history

    @property
    def closed(self) -> bool:
        """Whether the guard was closed."""
        return self._closing is not None

    def serve(
        self, port: int | range = 0, *, host: str = "127.0.0.1", token: str | None = None
    ) -> Page:
        """Serve a page that shows the guard at work; see `tamis.Guard.serve`."""
        return self.guard.serve(port, host=host, token=token)

    async def rebuild(self) -> None:
        """Rebuild the filter from the store's keys; queries continue meanwhile, writes wait."""
        guard = await self._open()
        await self._in_writer(guard.rebuild)

    async def save(self) -> None:
        """Write the snapshot now."""
        guard = await self._open()
        await self._in_writer(guard.save)

    async def close(self) -> None:
        """Wait for the writes that have begun, then close the guard and the store.

        In another event loop than its own, it leaves the asynchronous connections as they are: they
        cannot be used there, not even to be closed.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        if not self._closing.done():
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._opening is not None and not self._opening.done():
            await asyncio.wait([self._opening])
        elsewhere = self._loop not in (None, asyncio.get_running_loop())
        self._loop = None
        try:
            guard, self._guard = self._guard, None
            self._closed_guard = guard
            # After the writes before it, in the same thread.
            await self._in_writer(self.store.close if guard is None else guard.close)
        finally:
            self._writer.shutdown(wait=False)
            self._threads.shutdown(wait=False)
            if self._reader is not None and not elsewhere:
                await self._reader.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        if self._guard is None:
            state = "closed" if self.closed else "not open yet"
            return f"<tamis.AsyncGuard in front of {type(self.store).__name__}, {state}>"
        return repr(self._guard).replace("tamis.Guard", "tamis.AsyncGuard")

    # Threads.

    def _check_loop(self) -> None:
        """Raise `RuntimeError` outside the event loop of the guard."""
        if self._loop not in (None, asyncio.get_running_loop()):
            raise RuntimeError(
                "this guard was opened in another event loop, to which its connections belong: "
                "open a guard in each"
            )

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        self._check_loop()
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _in_writer(self, call: Callable[[], _T]) -> _T:
        """Run a call in the writer thread, in order. Cancelling the task does not stop it."""
        self._check_loop()
        running = self._writer.submit(call)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            running.add_done_callback(self._log_failure)
            raise

    def _log_failure(self, done: Future[Any]) -> None:
        """Log the error of a write that no task waits for."""
        guard = self._guard or self._closed_guard
        if guard is not None and not done.cancelled() and (error := done.exception()) is not None:
            guard.log.warning("a write failed after its task was cancelled: %s", error)
