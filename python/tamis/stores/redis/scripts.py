"""The Lua scripts of `tamis.stores.Redis`, each of which Redis runs atomically, and their answers.

Scripts check everything before they write anything: Redis does not undo the writes of a script that
fails. The first command that writes is one that Redis refuses when it is out of memory, and Redis
decides that once per script, so it also refuses a script as a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tamis.stores.base import PlainKey, position_number
from tamis.stores.encoding import decode_key

# The record of the lease, ``w``, has the owner, the number of the grant, the lease's length, the
# longest length ever and the run of the server in which it was granted. It is the caller's if the
# owner is, and if the server has not been restarted since: the database may
# have come back in an earlier state.
_RUN = """
local function run_id()
  local info = redis.call('INFO', 'server')
  local _, start = info:find('run_id:', 1, true)
  return info:sub(start + 1, start + 40)
end
local function holder(key, owner)
  local r = redis.call('HMGET', key, 'owner', 'run')
  if r[1] == owner and r[2] == run_id() then return nil end
  return r[1] or ''
end
"""

# KEYS: w. ARGV: owner, number of this grant, milliseconds, state that may be replaced (or ''), and
# whether to write a record without an owner if there is none, so that it can be watched.
# Returns {1}, or {0, whether there is a record of a grant, whether it is of this run, longest
# milliseconds, for how many seconds the server has surely run, the state}. It has run for as long
# as both its wall clock and the time of its main thread say; old servers do not know the latter.
LEASE = """
local info = redis.call('INFO', 'server')
local run, uptime = info:match('run_id:(%x+)'), info:match('uptime_in_seconds:(%-?%d+)')
if ARGV[5] == '1' and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'owner', '', 'grant', ARGV[2], 'ms', '0', 'longest', '0', 'run', '')
end
local r = redis.call('HMGET', KEYS[1], 'owner', 'grant', 'ms', 'longest', 'run')
local state = run
for i = 1, 5 do state = state .. ' ' .. (r[i] or '-') end
local same = r[5] == run
if (same and (r[1] == ARGV[1] or r[1] == '')) or ARGV[4] == state then
  local longest = math.max(tonumber(r[4] or '0'), tonumber(ARGV[3]))
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'grant', ARGV[2], 'ms', ARGV[3],
    'longest', string.format('%.0f', longest), 'run', run)
  return {1}
end
local cpu, computed = redis.call('INFO', 'cpu'), 0
for _, part in ipairs({'sys', 'user'}) do
  computed = computed + tonumber(cpu:match('used_cpu_' .. part .. '_main_thread:([%d.]+)') or '0')
end
return {0, (r[2] and r[5] ~= '') and 1 or 0, same and 1 or 0,
  tonumber(same and r[3] or r[4] or '0'), math.floor(math.min(tonumber(uptime), computed)), state}
"""

RELEASE = """
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then redis.call('HSET', KEYS[1], 'owner', '') end
"""

# Make sure that there is a position, for the holder of the lease.
# KEYS: e, w, j. ARGV: the owner, the random part of a new position.
BEGIN = (
    _RUN
    + """
if holder(KEYS[2], ARGV[1]) or redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('SET', KEYS[1], '1.' .. ARGV[2])
redis.call('DEL', KEYS[3])
redis.call('XADD', KEYS[3], '1-0', 't', ARGV[2])
return 1
"""
)

# KEYS: d, h, e, w, m, j, and the channel. ARGV: the owner, the random part of the next position and
# how many changes the journal keeps, with spaces between them; the index's name, or '' if there is
# none; then for each key the encoded key, its hash if there is an index, and its value for a put.
# Each change of the set of keys is an entry of the journal, with the number of its position.
# Returns words: 'lease' and the owner that holds it, 'index', or 'done', the positions before and
# after and, for each key, 1 or 0: whether it was there.
_WRITE = """
local put, indexed = %s, ARGV[2] ~= ''
local width = 1 + (indexed and 1 or 0) + (put and 1 or 0)
local owner, token, kept = ARGV[1]:match('^(%%S+) (%%S+) (%%S+)$')
local other = holder(KEYS[4], owner)
if other then return 'lease ' .. other end
if indexed and (redis.call('HGET', KEYS[5], 'index') ~= ARGV[2]
  or redis.call('HLEN', KEYS[1]) ~= redis.call('ZCARD', KEYS[2])) then return 'index' end
local existed, changes = {}, 0
for i = 3, #ARGV, width do
  local n = #existed + 1
  existed[n] = redis.call('HEXISTS', KEYS[1], ARGV[i])
  if (existed[n] == 0) == put then changes = changes + 1 end
end
local before = redis.call('GET', KEYS[3])
local lost = not before
if lost then before = '1.' .. token .. '-' end
local after, number = before, tonumber(before:match('^%%d+'))
if lost or changes > 0 then
  after = string.format('%%.0f', number + changes) .. '.' .. token
  redis.call('SET', KEYS[3], after)
end
if lost then redis.call('DEL', KEYS[6]) end
for n, was in ipairs(existed) do
  local i = 3 + (n - 1) * width
  local key = ARGV[i]
  if put then redis.call('HSET', KEYS[1], key, ARGV[i + width - 1]) end
  if (was == 1) ~= put then
    number = number + 1
    redis.call('XADD', KEYS[6], string.format('%%.0f-0', number), 't', token,
      put and '+' or '-', key)
    if not put then redis.call('HDEL', KEYS[1], key) end
    if indexed then redis.call(put and 'ZADD' or 'ZREM', KEYS[2], unpack(put and
      {0, ARGV[i + 1]} or {ARGV[i + 1]})) end
  end
end
if after ~= before then
  if not indexed then redis.call('HDEL', KEYS[5], 'index') end
  redis.call('XTRIM', KEYS[6], 'MAXLEN', '~', kept)
  redis.call('PUBLISH', KEYS[7], after)
end
return 'done ' .. before .. ' ' .. after .. ' ' .. table.concat(existed)
"""
PUT, DELETE = _RUN + _WRITE % "true", _RUN + _WRITE % "false"

# Say whether the index is as it should be.
# KEYS: d, h, e, w, m. ARGV: the owner, the index's name.
ATTACH = (
    _RUN
    + """
local other = holder(KEYS[4], ARGV[1])
if other then return {'lease', other} end
if redis.call('HGET', KEYS[5], 'index') == ARGV[2]
  and redis.call('HLEN', KEYS[1]) == redis.call('ZCARD', KEYS[2]) then return {'done'} end
return {'build', redis.call('GET', KEYS[3]) or ''}
"""
)

# Replace the index by a new one, if nothing changed since.
# KEYS: d, h, e, w, m, the new index. ARGV: the owner, the index's name, the position.
SWAP = (
    _RUN
    + """
local other = holder(KEYS[4], ARGV[1])
if other then return {'lease', other} end
if (redis.call('GET', KEYS[3]) or '') ~= ARGV[3]
  or redis.call('HLEN', KEYS[1]) ~= redis.call('ZCARD', KEYS[6]) then return {'again'} end
redis.call('HSET', KEYS[5], 'index', ARGV[2])
redis.call('DEL', KEYS[2])
if redis.call('EXISTS', KEYS[6]) == 1 then
  redis.call('RENAME', KEYS[6], KEYS[2])
  redis.call('PERSIST', KEYS[2])
end
return {'done'}
"""
)

# Hashes in ranges, at most a number of each, if the index is complete and has this name.
# KEYS: d, h, m. ARGV: the index's name, the number (-1 for all), then the first and last of each
# range.
RUNS = """
if redis.call('HGET', KEYS[3], 'index') ~= ARGV[1]
  or redis.call('HLEN', KEYS[1]) ~= redis.call('ZCARD', KEYS[2]) then return false end
local found = {}
for i = 3, #ARGV, 2 do
  found[#found + 1] =
    redis.call('ZRANGEBYLEX', KEYS[2], ARGV[i], ARGV[i + 1], 'LIMIT', 0, ARGV[2])
end
return found
"""

# A page of the keys, without the values, and the changes since the last page.
# KEYS: d, e, j. ARGV: the cursor, the size, the first number of the journal to read.
PAGE = """
local cursor, found = unpack(redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]))
local keys = {}
for i = 1, #found, 2 do keys[#keys + 1] = found[i] end
return {redis.call('GET', KEYS[2]), cursor, keys, redis.call('XRANGE', KEYS[3], ARGV[3], '+')}
"""


class Change(NamedTuple):
    """An entry of the journal: a key that was added or removed, or the first position of all."""

    number: int
    position: str
    added: bool
    key: bytes | None
    """The encoded key; `None` for the first position."""

    @classmethod
    def read(cls, id: bytes, fields: dict[bytes, bytes]) -> Change:
        """Read an entry of the stream."""
        number = int(id.partition(b"-")[0])
        position = f"{number}.{fields[b't'].decode()}"
        return cls(number, position, b"+" in fields, fields.get(b"+", fields.get(b"-")))


class Page(NamedTuple):
    """A page of the encoded keys, and the changes since the previous page."""

    position: str | None
    cursor: int
    """Where the next page begins; 0 after the last one."""
    keys: list[bytes]
    changes: list[Change]

    @classmethod
    def read(cls, answer: list[Any]) -> Page:
        """Read the answer of the script."""
        position, cursor, keys, changes = answer
        rows = [
            Change.read(id, dict(zip(fields[::2], fields[1::2], strict=True)))
            for id, fields in changes
        ]
        return cls(position and position.decode(), int(cursor), keys, rows)


class ChangedError(LookupError):
    """Keys were read while unknown changes were written."""


def keys_at(page: Page, next_page: Callable[[int, int], Page]) -> Iterator[list[PlainKey]]:
    """Iterate over the keys at the position of the first page, regardless of concurrent writes.

    A key that has not changed before its page was read is as it was at that position. For one that
    has, its first change says whether it was there: a key that was added was not, and one that was
    removed was. Redis may list a key on two pages while it resizes its table, so keys are
    remembered. ``next_page`` takes a cursor, and the number of the journal to read on from.
    """
    position = page.position or ""
    was_there: dict[bytes, bool] = {}
    known: set[bytes] = set()
    while True:
        fresh = [key for key in page.keys if key not in was_there and key not in known]
        known.update(fresh)
        yield [decode_key(key) for key in dict.fromkeys(fresh)]
        if page.cursor == 0:
            break
        number = position_number(position)
        page = next_page(page.cursor, number + 1)
        positions = [position, *(change.position for change in page.changes)]
        if page.position != positions[-1] or [change.number for change in page.changes] != [
            *range(number + 1, number + len(positions))
        ]:
            raise ChangedError("the keys changed while they were read")
        position = positions[-1]
        for change in page.changes:
            if change.key is not None:
                was_there.setdefault(change.key, not change.added)
    yield [decode_key(key) for key, was in was_there.items() if was and key not in known]
