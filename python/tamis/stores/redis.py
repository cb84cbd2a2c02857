"""`tamis.stores.Redis`: keys in a Redis database (``pip install tamis[redis]``).

A store consists of five Redis keys, ``{name}:d`` and so on: ``d`` is a hash of the values, ``h`` a
sorted set of the index entries (all of score 0, so that Redis sorts them by their bytes), ``e`` the
epoch, ``l`` the lease and ``n`` a hash of notes. A write is one script, which checks the lease
first and which Redis runs atomically.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from tamis.stores._keyvalue import (
    changes_without_journal,
    entry_hashes,
    entry_keys,
    index_entries,
    load_values,
    next_epoch,
)
from tamis.stores.contract import (
    BATCH,
    Changes,
    Commit,
    Hasher,
    HashRows,
    PlainKey,
    Store,
    Value,
    batches,
    decode_key,
    encode_key,
    encode_value,
    lease_error,
)

_LEASE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"

# Arguments: the owner, the random part of the next epoch, then for each key the encoded key, its
# index entry and, for a put, its value.
_WRITE = """
local put, holder = %s, redis.call('GET', KEYS[4])
if holder ~= ARGV[1] then return {holder or ''} end
local before, existed, changed = redis.call('GET', KEYS[3]), {}, false
for i = 3, #ARGV, put and 3 or 2 do
  local was = redis.call('HEXISTS', KEYS[1], ARGV[i])
  existed[#existed + 1] = was
  if put then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
    if was == 0 then redis.call('ZADD', KEYS[2], 0, ARGV[i + 1]) changed = true end
  elseif was == 1 then
    redis.call('HDEL', KEYS[1], ARGV[i])
    redis.call('ZREM', KEYS[2], ARGV[i + 1])
    changed = true
  end
end
local after = before
if changed then
  after = (tonumber(before:match('^%%d+')) + 1) .. '.' .. ARGV[2]
  redis.call('SET', KEYS[3], after)
end
return {before, after, existed}
"""


class Redis(Store):
    """A store in a Redis database. Only guards may write to it, one at a time.

    A server that crashes may lose its most recent writes (under the default persistence), and the
    epoch goes back with them. The guard notices when it next renews its lease, and rebuilds.
    """

    shared = False

    def __init__(
        self,
        url: str = "redis://localhost:6379",
        *,
        name: str = "tamis",
        timeout: float | None = 30.0,
    ) -> None:
        """Connect to a server; ``name`` separates several stores in one database.

        ``timeout`` is how many seconds to wait for the server; `None` waits as long as it takes.
        """
        try:
            import redis
        except ImportError:
            raise ImportError("tamis.stores.Redis needs redis: pip install tamis[redis]") from None
        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=timeout, socket_connect_timeout=timeout
        )
        # Braces keep the keys of one store on one node of a cluster.
        self._d, self._h, self._e, self._l, self._n = (f"{{{name}}}:{part}" for part in "dheln")
        self._put = self._client.register_script(_WRITE % "true")
        self._delete = self._client.register_script(_WRITE % "false")
        self._lease = self._client.register_script(_LEASE)
        self._release = self._client.register_script(_RELEASE)
        self._hasher: Hasher | None = None
        self._client.set(self._e, next_epoch("0"), nx=True)

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        if not keys:
            return []
        return load_values(self._client.hmget(self._d, [encode_key(key) for key in keys]))

    def put_many(self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys and their hashes in one script."""
        return self._write(self._put, owner, keys, [encode_value(value) for value in values])

    def delete_many(self, keys: Sequence[PlainKey], owner: str) -> Commit:
        """Delete distinct keys and their hashes in one script."""
        return self._write(self._delete, owner, keys)

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys, in batches, from the index, which lists each key once."""
        return self.epoch(), map(entry_keys, self._pages())

    def run(self, lo: int, hi: int) -> HashRows:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        first = b"[" + lo.to_bytes(8, "big")
        last = b"+" if hi == 2**64 - 1 else b"(" + (hi + 1).to_bytes(8, "big")
        return entry_hashes(self._client.zrangebylex(self._h, first, last))

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        return map(entry_hashes, self._pages())

    def epoch(self) -> str:
        """Return the current epoch."""
        epoch = self._client.get(self._e)
        return "lost" if epoch is None else epoch.decode()

    def changes(
        self, since: str, until: str | None = None, limit: int | None = None
    ) -> Changes | None:
        """Return no changes if the epochs are equal; otherwise `None`, as there is no journal."""
        return changes_without_journal(since, self.epoch() if until is None else until)

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher; if the index had another name, build a new one and swap."""
        holder = self._client.get(self._l)
        if holder != owner.encode():
            raise lease_error(holder and holder.decode())
        self._hasher = hasher
        if self.note("index") == name:
            return
        fresh = f"{self._h}:new"
        self._client.delete(fresh)
        for part in batches([decode_key(key) for key in self._client.hkeys(self._d)]):
            self._client.zadd(fresh, dict.fromkeys(index_entries(hasher, part), 0))
        pipe = self._client.pipeline(transaction=True)
        if self._client.exists(fresh):
            pipe.rename(fresh, self._h)
        pipe.hset(self._n, "index", name)
        pipe.execute()

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, which expires by the server's clock."""
        milliseconds = max(int(seconds * 1000), 1)
        return bool(self._lease(keys=[self._l], args=[owner, milliseconds]))

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        self._release(keys=[self._l], args=[owner])

    def note(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return the note of this name, after setting it to ``value`` if that is given."""
        if value is not None:
            self._client.hset(self._n, name, value)
        noted: bytes | None = self._client.hget(self._n, name)
        return noted

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _write(
        self,
        script: Any,
        owner: str,
        keys: Sequence[PlainKey],
        values: list[bytes] | None = None,
    ) -> Commit:
        if self._hasher is None:
            raise lease_error("")  # whoever takes the lease attaches its hasher first
        columns = [[encode_key(key) for key in keys], index_entries(self._hasher, keys)]
        if values is not None:
            columns.append(values)
        arguments: list[Any] = [owner, secrets.token_hex(8)]
        for row in zip(*columns, strict=True):
            arguments += row
        answer = script(keys=[self._d, self._h, self._e, self._l], args=arguments)
        if len(answer) == 1:
            raise lease_error(answer[0].decode() or None)
        before, after, existed = answer
        return Commit([was == 1 for was in existed], before.decode(), after.decode())

    def _pages(self) -> Iterator[list[bytes]]:
        start = b"-"
        while part := self._client.zrangebylex(self._h, start, b"+", start=0, num=BATCH):
            yield part
            start = b"(" + part[-1]
