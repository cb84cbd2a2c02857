"""`tamis.stores.Redis`: keys in a Redis database (``pip install tamis[redis]``).

A store consists of a few Redis keys, ``{name}:d`` and so on: ``d`` is a hash of the values, ``h`` a
sorted set of the index entries (all of score 0, so that Redis sorts them by their bytes), ``e`` the
epoch, ``j`` the journal, a stream of the latest changes, ``w`` the lease and ``m`` a hash of
metadata. A write is one script, which checks everything before it writes anything.

Redis may lose any of this: keys are flushed or evicted, and a server that is restarted comes back
empty or with an earlier state. A lost epoch equals no other, so every guard rebuilds. How a lost
lease is noticed is in `_redis_lease.py`.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from tamis._checks import check_number
from tamis.errors import LeaseError, StoreError
from tamis.stores import _fork
from tamis.stores import _redis_scripts as scripts
from tamis.stores._encoding import decode_key, encode_keys, encode_values
from tamis.stores._keyvalue import (
    entry_hashes,
    entry_keys,
    epoch_number,
    index_entries,
    load_values,
    lost_epoch,
)
from tamis.stores._redis_journal import Change, ChangedError, Page, keys_at
from tamis.stores._redis_lease import Lease
from tamis.stores._watch import start_watching
from tamis.stores.contract import (
    BATCH,
    JOURNAL,
    Changes,
    Commit,
    Hasher,
    HashRows,
    PlainKey,
    Store,
    Value,
    attach_error,
    batches,
    check_address,
    check_timeout,
    lease_error,
    store_error,
)

_MAX_DELAY = 5.0
"""Seconds between attempts to connect again for signals: doubled from 0.05 up to this."""

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
                "grace", grace, "a number of seconds of at least 0, or None", least=0
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
        self._d, self._h, self._e, self._w, self._m, self._j, self._channel = (
            f"{{{name}}}:{part}".encode() for part in "dhewmjc"
        )
        self._write_keys = [
            *(self._d, self._h, self._e, self._w, self._m, self._j),
            self._channel,
        ]
        self._digests = {
            text: hashlib.sha1(text.encode()).hexdigest()
            for text in vars(scripts).values()
            if isinstance(text, str) and "redis.call" in text
        }
        self._history, self._counter = secrets.token_hex(8), count()
        self._hasher: Hasher | None = None
        self._index_name = b""
        self._lease = Lease(self._call, self._client, self._w, name, grace)
        self._owner_suffix = ""
        try:
            with self._translated:
                self._client.ping()
        except BaseException:
            self._client.close()
            raise
        _fork.register(self)

    # Keys and values.

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        if not keys:
            return []
        with self._translated:
            return load_values(self._client.hmget(self._d, encode_keys(keys)))

    def put_many(self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys and their hashes in one script."""
        return self._write(scripts.PUT, owner, keys, encode_values(values))

    def delete_many(self, keys: Sequence[PlainKey], owner: str) -> Commit:
        """Delete distinct keys and their hashes in one script."""
        return self._write(scripts.DELETE, owner, keys)

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys at that epoch, in batches.

        The keys come from the index, which lists each once, or from the data if the index is lost.
        """
        first = self._page(b"-")
        if first.epoch is None or not first.complete:
            epoch, keys = self._data_keys()
            return epoch, batches(keys)

        def read() -> Iterator[list[PlainKey]]:
            try:
                yield from keys_at(first, lambda last, number: self._page(b"(" + last, number))
            except ChangedError as error:
                raise self._lost(str(error)) from None

        return first.epoch, read()

    # The index.

    def run(self, lo: int, hi: int) -> HashRows:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        return self.runs([(lo, hi)])[0]

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return `run` of each range, in one script."""
        if not ranges:
            return []
        arguments: list[bytes] = [self._index_name]
        for lo, hi in ranges:
            arguments.append(b"[" + lo.to_bytes(8, "big"))
            arguments.append(b"+" if hi == 2**64 - 1 else b"(" + (hi + 1).to_bytes(8, "big"))
        found = self._call(scripts.RUNS, [self._d, self._h, self._m], arguments)
        if found is None:
            raise self._lost("the index of hashes was lost")
        return [entry_hashes(entries) for entries in found]

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        start, index = b"-", None
        while True:
            page = self._page(start)
            if not page.complete or index not in (None, page.index_name):
                raise self._lost("the index of hashes was lost")
            if not page.entries:
                return
            yield entry_hashes(page.entries)
            start, index = b"(" + page.entries[-1], page.index_name

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher; if the index had another name, build a new one and swap."""
        owner = owner + self._owner_suffix
        keys = [self._d, self._h, self._e, self._w, self._m]
        fresh = b"%s:%s" % (self._h, owner.encode())
        while True:
            state, *detail = self._call(
                scripts.ATTACH, [*keys, self._j], [owner, name, secrets.token_hex(8)]
            )
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
                    pipe.zadd(fresh, dict.fromkeys(index_entries(hasher, keys), 0))
                    pipe.expire(fresh, _BUILD_SECONDS)
                    pipe.execute()
            with self._translated:
                if not self._lease.keep(owner):
                    raise lease_error("")

    # Epochs.

    def epoch(self) -> str:
        """Return the current epoch; one that is lost equals no other."""
        with self._translated:
            epoch = self._client.get(self._e)
        return lost_epoch() if epoch is None else epoch.decode()

    def changes(
        self, since: str, until: str | None = None, limit: int | None = None
    ) -> Changes | None:
        """Return the journal since an epoch; `None` if the journal does not reach back to it."""
        now = self.epoch() if until is None else until
        if since == now:
            return Changes(now, [], [])
        first, last = epoch_number(since), epoch_number(now)
        if not 0 < first < last:
            return None
        count = last - first if limit is None else min(max(int(limit), 1), last - first)
        with self._translated:
            entries = self._client.xrange(self._j, f"{first}-0", f"{last}-0", count=count + 1)
        rows = [Change.read(*entry) for entry in entries]
        numbers = [row.number for row in rows]
        # An entry that is missing, or of another history, means that changes are unknown.
        if numbers != [*range(first, first + count + 1)] or rows[0].epoch != since:
            return None
        more = rows[-1].number < last
        if not more and rows[-1].epoch != now:
            return None
        return Changes(
            rows[-1].epoch,
            entry_keys([row.entry for row in rows[1:] if row.added]),
            entry_keys([row.entry for row in rows[1:] if not row.added]),
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
        with self._translated:
            return self._lease.take(owner + self._owner_suffix, seconds)

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
                self._client.hset(self._m, name, value)
            found: bytes | None = self._client.hget(self._m, name)
        return found

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def forget_connections(self) -> None:
        """Write as another owner; the driver itself opens new connections in a forked child."""
        self._owner_suffix, self._history = f"/{secrets.token_hex(8)}", secrets.token_hex(8)
        self._lease.forget()
        self._hasher = None

    # Scripts.

    def _write(
        self, script: str, owner: str, keys: Sequence[PlainKey], values: list[bytes] | None = None
    ) -> Commit:
        if self._hasher is None:
            raise attach_error()
        # The server may come back with an earlier state: an epoch must never be used twice.
        token = f"{self._history}{next(self._counter):x}"
        arguments: list[Any] = [f"{owner}{self._owner_suffix} {token} {JOURNAL}", self._index_name]
        entries = index_entries(self._hasher, keys)
        if values is None:
            arguments += entries
        else:
            for row in zip(entries, values, strict=True):
                arguments += row
        state, *words = self._call(script, self._write_keys, arguments).split(b" ")
        if state == b"index":
            # Attaching rebuilds it, and happens when a guard takes the lease again.
            raise LeaseError("nothing was written: the server lost the index of hashes")
        if state == b"lease":
            raise lease_error(words[0].decode() or None)
        before, after, existed = words
        present = [digit == "1" for digit in existed.decode()]
        return Commit(present, before.decode(), after.decode())

    def _call(self, script: str, keys: list[bytes], arguments: Sequence[Any]) -> Any:
        with self._translated:
            try:
                return self._client.evalsha(self._digests[script], len(keys), *keys, *arguments)
            except self._no_script:
                return self._client.eval(script, len(keys), *keys, *arguments)

    # Reading all keys.

    def _page(self, start: bytes, number: int | None = None) -> Page:
        keys = [self._d, self._h, self._e, self._m, self._j]
        since = "+" if number is None else f"{number}-0"
        return Page.read(self._call(scripts.PAGE, keys, [start, BATCH, since]))

    def _data_keys(self) -> tuple[str, list[PlainKey]]:
        """Return the epoch and all keys, from the data."""
        for _ in range(5):
            epoch = self.epoch()
            keys = {key for part in self._data() for key in part}
            if epoch_number(epoch) == 0 or self.epoch() == epoch:
                return epoch, list(keys)
        raise self._lost("the keys changed while they were read")

    def _data(self) -> Iterator[list[PlainKey]]:
        """Iterate over the keys of the data; a key may come twice."""
        cursor: int | None = None
        while cursor != 0:
            with self._translated:
                cursor, found = self._client.hscan(self._d, cursor or 0, count=BATCH)
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
