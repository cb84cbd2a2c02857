"""`tamis.stores.Redis`: keys in a Redis database (``pip install tamis[redis]``).

A store consists of a few Redis keys, ``{name}:d`` and so on: ``d`` is a hash of the values, ``h``
the index, a sorted set of hashes (of score 0, so that Redis sorts them by their bytes), ``e`` the
position, ``j`` the journal, a stream of the latest changes, ``w`` the lease and ``m`` a hash of
metadata. A write is one script, which checks everything before it writes anything.

Redis may lose any of this: keys are flushed or evicted, and a server that is restarted comes back
empty or with an earlier state. A lost position equals no other, so every guard rebuilds. How a lost
lease is noticed is in `lease.py`.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from tamis._checks import check_number
from tamis._native import encode_hashes
from tamis.errors import LeaseError, StoreError
from tamis.stores.base import (
    BATCH,
    JOURNAL,
    Changes,
    Commit,
    Hasher,
    HashRows,
    PlainKey,
    Store,
    Value,
    batches,
    check_address,
    check_timeout,
    commit_of,
    lease_error,
    lost_position,
    position_number,
    store_error,
)
from tamis.stores.connections import forget_after_fork, start_watching
from tamis.stores.encoding import (
    decode_hashes,
    decode_key,
    encode_keys,
    encode_values,
    load_values,
)
from tamis.stores.redis import scripts
from tamis.stores.redis.lease import Lease
from tamis.stores.redis.scripts import Change, ChangedError, Page, keys_at

_MAX_DELAY = 5.0
"""Seconds between attempts to connect again for signals: doubled from 0.05 up to this."""

_READER_CONNECTIONS = 32
"""Asynchronous reads at once; more of them wait for their turn."""

_BUILD_SECONDS = 600
"""How long Redis keeps an index that is being built after the last step."""


class Redis(Store):
    """A store in a Redis database. Only guards may write to it, one at a time.

    Guards of one store should use the same ``lease=``: if the server loses the lease, that is how
    long the others wait for it.
    """

    shared = False

    def __init__(
        self,
        url: str = "redis://localhost:6379",
        *,
        name: str = "tamis",
        timeout: float | None = 30.0,
        grace: float | None = None,
    ) -> None:
        """Connect to a server; ``name`` separates several stores in one database.

        ``timeout`` is how many seconds to wait for the server; `None` waits as long as it takes.
        ``grace`` is for how many seconds no lease is granted by a server that may have granted one
        and lost it in a restart (default: the lease's length). Pass 0 for a server that is known to
        be new, or that never loses a write (``appendfsync always``).
        """
        check_address("url", url, str, 'a URL such as "redis://localhost:6379"')
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {name!r}")
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError:
            raise ImportError("tamis.stores.Redis needs redis: pip install tamis[redis]") from None
        timeout = check_timeout(timeout)
        if grace is not None:
            grace = check_number(
                "grace", grace, "a number of seconds of at least 0, or None", minimum=0
            )
        self._url, self._timeout = url, timeout
        try:
            # A write is never sent twice.
            self._client: Any = redis.Redis.from_url(
                url,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError:
            # The driver's message may contain the password.
            raise ValueError(
                "url must be a Redis URL such as 'redis://localhost:6379/0', 'rediss://…' or "
                "'unix://…'"
            ) from None
        self._errors: type[Exception] = redis.RedisError
        self._no_script: type[Exception] = redis.exceptions.NoScriptError
        at = self._client.connection_pool.connection_kwargs
        self._where = "Redis at " + str(
            at.get("path") or f"{at.get('host', 'localhost')}:{at.get('port', 6379)}"
        )
        self._translated = _TranslatedErrors(self._where, self._errors)
        # Braces keep the keys of one store on one node of a cluster.
        self._write_keys = [f"{{{name}}}:{part}".encode() for part in "dhewmjc"]
        self._data_key, self._hashes_key, self._position_key = self._write_keys[:3]
        self._lease_key, self._metadata_key, self._journal_key, self._channel = self._write_keys[3:]
        self._digests = {
            text: hashlib.sha1(text.encode()).hexdigest()
            for text in vars(scripts).values()
            if isinstance(text, str) and "redis.call" in text
        }
        self._history, self._counter = secrets.token_hex(8), count()
        self._hasher: Hasher | None = None
        self._index_name = b""
        self._lease = Lease(self._call, self._client, self._lease_key, name, grace)
        self._owner_suffix = ""
        try:
            with self._translated:
                self._client.ping()
        except BaseException:
            self._client.close()
            raise
        forget_after_fork(self)

    # Keys and values.

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        if not keys:
            return []
        with self._translated:
            return load_values(self._client.hmget(self._data_key, encode_keys(keys)))

    async def open_reader(self) -> RedisReader | None:
        """Open a reader; a subclass that reads in another way has none."""
        return RedisReader(self) if type(self).get_many is Redis.get_many else None

    def put_many(
        self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str, since: str = ""
    ) -> Commit:
        """Write distinct keys in one script."""
        return self._write(scripts.PUT, owner, since, keys, encode_values(values))

    def delete_many(self, keys: Sequence[PlainKey], owner: str, since: str = "") -> Commit:
        """Delete distinct keys in one script."""
        return self._write(scripts.DELETE, owner, since, keys)

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the position and the keys at that position, in batches.

        Without a position, which only the holder of the lease creates, changes are unknown.
        """
        first = self._page(0)
        if first.position is None:
            keys = {key for part in self._data() for key in part}
            return lost_position(), batches([*keys])

        def read() -> Iterator[list[PlainKey]]:
            try:
                yield from keys_at(first, self._page)
            except ChangedError as error:
                raise self._lost(str(error)) from None

        return first.position, read()

    # The index.

    def run(self, lo: int, hi: int) -> HashRows:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        return self.runs([(lo, hi)])[0]

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return `run` of each range, in one script."""
        if not ranges:
            return []
        bounds: list[bytes] = []
        for lo, hi in ranges:
            bounds.append(b"[" + lo.to_bytes(8, "big"))
            bounds.append(b"+" if hi == 2**64 - 1 else b"(" + (hi + 1).to_bytes(8, "big"))
        return [decode_hashes(found) for found in self._runs(-1, bounds)]

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        start = b"-"
        while hashes := self._runs(BATCH, [start, b"+"])[0]:
            yield decode_hashes(hashes)
            start = b"(" + hashes[-1]

    def _runs(self, limit: int, bounds: list[bytes]) -> list[list[bytes]]:
        """Return at most ``limit`` hashes of each range."""
        keys, arguments = (
            [self._data_key, self._hashes_key, self._metadata_key],
            [self._index_name, limit, *bounds],
        )
        found: list[list[bytes]] | None = self._call(scripts.RUNS, keys, arguments)
        if found is None:
            raise self._lost("the index of hashes was lost")
        return found

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher; if the index had another name, build a new one and swap."""
        owner = owner + self._owner_suffix
        keys = [
            self._data_key,
            self._hashes_key,
            self._position_key,
            self._lease_key,
            self._metadata_key,
        ]
        fresh = b"%s:%s" % (self._hashes_key, owner.encode())
        while True:
            state, *detail = self._call(scripts.ATTACH, keys, [owner, name])
            if state == b"build":
                try:
                    self._build_index(fresh, owner, hasher)
                    state, *detail = self._call(
                        scripts.SWAP, [*keys, fresh], [owner, name, *detail]
                    )
                finally:
                    with self._translated:
                        self._client.delete(fresh)
            if state == b"lease":
                raise lease_error(detail[0].decode() or None)
            if state == b"done":
                self._hasher, self._index_name = hasher, name
                return

    def _build_index(self, fresh: bytes, owner: str, hasher: Hasher) -> None:
        """Build a second index of the data; keep the lease meanwhile."""
        with self._translated:
            self._client.delete(fresh)
        for keys in self._data():
            if keys:
                with self._translated, self._client.pipeline(transaction=False) as pipe:
                    pipe.zadd(fresh, dict.fromkeys(encode_hashes(hasher(keys)), 0))
                    pipe.expire(fresh, _BUILD_SECONDS)
                    pipe.execute()
            with self._translated:
                if not self._lease.keep(owner):
                    raise lease_error("")

    # Changes.

    def changes(self, since: str, limit: int | None = None) -> Changes | None:
        """Return the changes since a position; `None` if the journal does not reach back to it."""
        with self._translated:
            found = self._client.get(self._position_key)
        if found is None:
            return None
        now = found.decode()
        if since == now:
            return Changes(now, [], [])
        first, last = position_number(since), position_number(now)
        if not 0 < first < last:
            return None
        count = last - first if limit is None else min(max(int(limit), 1), last - first)
        with self._translated:
            entries = self._client.xrange(
                self._journal_key, f"{first}-0", f"{last}-0", count=count + 1
            )
        rows = [Change.read(*entry) for entry in entries]
        numbers = [row.number for row in rows]
        # An entry that is missing, or of another history, means that changes are unknown.
        if numbers != [*range(first, first + count + 1)] or rows[0].position != since:
            return None
        more = rows[-1].number < last
        if not more and rows[-1].position != now:
            return None
        sums: dict[bytes, int] = {}
        for row in rows[1:]:
            if row.key is not None:
                sums[row.key] = sums.get(row.key, 0) + (1 if row.added else -1)
        return Changes(
            rows[-1].position,
            [decode_key(key) for key, n in sums.items() if n > 0],
            [decode_key(key) for key, n in sums.items() if n < 0],
            more,
        )

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` when a guard has written, and after each new connection to the server."""

        def listen(ended: threading.Event) -> None:
            delay = 0.05
            while not ended.is_set():
                try:
                    with self._client.pubsub() as signals:
                        signals.subscribe(self._channel)
                        while not ended.is_set():
                            # The first message confirms the subscription.
                            if signals.get_message(timeout=0.5) is not None:
                                delay = 0.05
                                wake()
                except (self._errors, OSError, ValueError):
                    ended.wait(delay)
                    delay = min(2 * delay, _MAX_DELAY)

        return start_watching("tamis-redis-watch", listen)

    # The lease.

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, unless another guard may rely on it."""
        name = owner + self._owner_suffix
        with self._translated:
            taken = self._lease.take(name, seconds)
        if taken:
            token = secrets.token_hex(8)
            self._call(
                scripts.BEGIN,
                [self._position_key, self._lease_key, self._journal_key],
                [name, token],
            )
        return taken

    @property
    def lease_refusal(self) -> str:
        """Why `lease` returned `False` last."""
        return self._lease.refusal

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        self._lease.release(owner + self._owner_suffix)

    def metadata(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return the metadata of this name; first set it to ``value``, if given."""
        with self._translated:
            if value is not None:
                self._client.hset(self._metadata_key, name, value)
            found: bytes | None = self._client.hget(self._metadata_key, name)
        return found

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def forget_connections(self) -> None:
        """Write as another owner; the driver itself opens new connections in a forked child."""
        self._owner_suffix, self._history = f"/{secrets.token_hex(8)}", secrets.token_hex(8)
        self._lease.forget()
        self._hasher, self._index_name = None, b""

    # Scripts.

    def _write(
        self,
        script: str,
        owner: str,
        since: str,
        keys: Sequence[PlainKey],
        values: list[bytes] | None = None,
    ) -> Commit:
        # The server may come back with an earlier state: a position must never be used twice.
        token = f"{self._history}{next(self._counter):x}"
        arguments: list[Any] = [f"{owner}{self._owner_suffix} {token} {JOURNAL}", self._index_name]
        columns = [encode_keys(keys)]
        if self._hasher is not None:
            columns.append(encode_hashes(self._hasher(keys)))
        if values is not None:
            columns.append(values)
        for row in zip(*columns, strict=True):
            arguments += row
        state, *words = self._call(script, self._write_keys, arguments).split(b" ")
        if state == b"index":
            # Attaching rebuilds it, and happens when a guard takes the lease again.
            raise LeaseError("nothing was written: the server lost the index of hashes")
        if state == b"lease":
            raise lease_error(words[0].decode() or None)
        before, after, existed = words
        present = [digit == "1" for digit in existed.decode()]
        adding = values is not None
        return commit_of(keys, present, adding, since, before.decode(), after.decode())

    def _call(self, script: str, keys: list[bytes], arguments: Sequence[Any]) -> Any:
        with self._translated:
            try:
                return self._client.evalsha(self._digests[script], len(keys), *keys, *arguments)
            except self._no_script:
                return self._client.eval(script, len(keys), *keys, *arguments)

    # Reading all keys.

    def _page(self, cursor: int, number: int | None = None) -> Page:
        since = "+" if number is None else f"{number}-0"
        return Page.read(
            self._call(
                scripts.PAGE,
                [self._data_key, self._position_key, self._journal_key],
                [cursor, BATCH, since],
            )
        )

    def _data(self) -> Iterator[list[PlainKey]]:
        """Iterate over the keys of the data; a key may come twice."""
        cursor: int | None = None
        while cursor != 0:
            with self._translated:
                cursor, found = self._client.hscan(self._data_key, cursor or 0, count=BATCH)
            yield [decode_key(key) for key in found]

    def _lost(self, what: str) -> StoreError:
        return StoreError(f"{self._where}: {what}")


class _TranslatedErrors:
    """A context in which errors of the driver are `StoreError`s."""

    def __init__(self, where: str, errors: type[Exception]) -> None:
        self._where, self._errors = where, errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, self._errors):
            raise store_error(self._where, error) from error


class RedisReader:
    """Reads through ``redis.asyncio``."""

    def __init__(self, store: Redis) -> None:
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._store = store
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            store._url,
            max_connections=_READER_CONNECTIONS,
            timeout=store._timeout,
            socket_timeout=store._timeout,
            socket_connect_timeout=store._timeout,
            retry=Retry(NoBackoff(), 0),
        )
        self._client: Any = redis.asyncio.Redis.from_pool(pool)

    async def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        with self._store._translated:
            found = await self._client.hmget(self._store._data_key, encode_keys(keys))
        return load_values(found)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
