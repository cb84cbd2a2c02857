"""`tamis.stores.Redis`: a part of a Redis database (``pip install tamis[redis]``).

Under one name lie a hash ``d`` of the values, a sorted set ``h`` whose members are the hash and the
key (all of score 0, so that Redis sorts them by their bytes), the epoch ``e``, the lease ``l`` and
a hash ``n`` of notes. A write is one script, which Redis runs whole; it checks the lease first.
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

# Arguments: the owner, the next epoch's token, then for each key the key, its entry in the index
# and, to put it, its value.
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


class Redis:
    """A store in Redis, under one name. Only guards may write there, one at a time.

    A server that loses its latest writes in a crash (the default persistence may) takes the epoch
    back with them, so a guard notices when it next renews its lease, and rebuilds.
    """

    shared = False

    def __init__(self, url: str = "redis://localhost:6379", *, name: str = "tamis") -> None:
        """Connect to a server; ``name`` keeps several stores in one database apart."""
        try:
            import redis
        except ImportError:
            raise ImportError("tamis.stores.Redis needs redis: pip install tamis[redis]") from None
        self._client: Any = redis.Redis.from_url(url)
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
        """Write distinct keys with their hashes in one script."""
        return self._write(self._put, owner, keys, [encode_value(value) for value in values])

    def delete_many(self, keys: Sequence[PlainKey], owner: str) -> Commit:
        """Remove distinct keys and their hashes in one script."""
        return self._write(self._delete, owner, keys)

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys, in batches: those of the index, which come only once."""
        return self.epoch(), map(entry_keys, self._pages())

    def run(self, lo: int, hi: int) -> HashRows:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        first = b"[" + lo.to_bytes(8, "big")
        last = b"+" if hi == 2**64 - 1 else b"(" + (hi + 1).to_bytes(8, "big")
        return entry_hashes(self._client.zrangebylex(self._h, first, last))

    def scan(self) -> Iterator[HashRows]:
        """Go through all hashes, a batch at a time."""
        return map(entry_hashes, self._pages())

    def epoch(self) -> str:
        """Return the present epoch."""
        epoch = self._client.get(self._e)
        return "lost" if epoch is None else epoch.decode()

    def changes(self, since: str, until: str | None = None) -> Changes | None:
        """Tell that nothing changed, or that it cannot tell what."""
        return changes_without_journal(since, self.epoch() if until is None else until)

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Keep the index with this function; made anew, beside the old one, if it had another."""
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
        """Take or renew the lease, which ends by the server's clock."""
        milliseconds = max(int(seconds * 1000), 1)
        return bool(self._lease(keys=[self._l], args=[owner, milliseconds]))

    def release(self, owner: str) -> None:
        """Give the lease back if it is this owner's."""
        self._release(keys=[self._l], args=[owner])

    def note(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return what was noted under a name, after noting ``value`` if there is one."""
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
