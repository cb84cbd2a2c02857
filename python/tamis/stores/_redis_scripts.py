"""The Lua scripts of `tamis.stores.Redis`, each of which Redis runs atomically.

Scripts check everything before they write anything: Redis does not undo the writes of a script that
fails. The first command that writes is one that Redis refuses when it is out of memory, and Redis
decides that once per script; so a script is refused as a whole, too.
"""

from __future__ import annotations

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

# KEYS: d, h, e, w, m, j, and the channel. ARGV: the owner, the random part of the next epoch and
# how many changes the journal keeps, with spaces between them; the index's name; then for each key
# its index entry (sixteen bytes of hash, then the encoded key) and, for a put, its value. Each
# change of the set of keys is an entry of the journal, which has the number of the epoch.
# Returns words: 'lease' and the owner that holds it, 'index', or 'done', the epochs before and
# after and, for each key, 1 or 0: whether it was there.
_WRITE = """
local put, width = %s, %d
local owner, token, kept = ARGV[1]:match('^(%%S+) (%%S+) (%%S+)$')
local other = holder(KEYS[4], owner)
if other then return 'lease ' .. other end
if redis.call('HGET', KEYS[5], 'index') ~= ARGV[2]
  or redis.call('HLEN', KEYS[1]) ~= redis.call('ZCARD', KEYS[2]) then return 'index' end
local keys, existed, changes = {}, {}, 0
for i = 3, #ARGV, width do
  local n = #keys + 1
  keys[n] = ARGV[i]:sub(17)
  existed[n] = redis.call('HEXISTS', KEYS[1], keys[n])
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
for n, key in ipairs(keys) do
  local i, was = 3 + (n - 1) * width, existed[n] == 1
  if put then redis.call('HSET', KEYS[1], key, ARGV[i + 1]) end
  if was ~= put then
    number = number + 1
    redis.call('XADD', KEYS[6], string.format('%%.0f-0', number), 't', token,
      put and '+' or '-', ARGV[i])
    if put then
      redis.call('ZADD', KEYS[2], 0, ARGV[i])
    else
      redis.call('HDEL', KEYS[1], key)
      redis.call('ZREM', KEYS[2], ARGV[i])
    end
  end
end
if after ~= before then
  redis.call('XTRIM', KEYS[6], 'MAXLEN', '~', kept)
  redis.call('PUBLISH', KEYS[7], after)
end
return 'done ' .. before .. ' ' .. after .. ' ' .. table.concat(existed)
"""
PUT, DELETE = _RUN + _WRITE % ("true", 2), _RUN + _WRITE % ("false", 1)

# Make sure that there is an epoch, and say whether the index is as it should be.
# KEYS: d, h, e, w, m, j. ARGV: the owner, the index's name, the random part of a new epoch.
ATTACH = (
    _RUN
    + """
local other = holder(KEYS[4], ARGV[1])
if other then return {'lease', other} end
if not redis.call('GET', KEYS[3]) then
  redis.call('SET', KEYS[3], '1.' .. ARGV[3])
  redis.call('DEL', KEYS[6])
  redis.call('XADD', KEYS[6], '1-0', 't', ARGV[3])
end
if redis.call('HGET', KEYS[5], 'index') == ARGV[2]
  and redis.call('HLEN', KEYS[1]) == redis.call('ZCARD', KEYS[2]) then return {'done'} end
return {'build', redis.call('GET', KEYS[3])}
"""
)

# Replace the index by a new one, if nothing changed since.
# KEYS: d, h, e, w, m, the new index. ARGV: the owner, the index's name, the epoch.
SWAP = (
    _RUN
    + """
local other = holder(KEYS[4], ARGV[1])
if other then return {'lease', other} end
if redis.call('GET', KEYS[3]) ~= ARGV[3]
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

# Hashes in ranges, if the index is whole and of this name ('' for any).
# KEYS: d, h, m. ARGV: the index's name, then the first and last of each range.
RUNS = """
if (ARGV[1] ~= '' and redis.call('HGET', KEYS[3], 'index') ~= ARGV[1])
  or redis.call('HLEN', KEYS[1]) ~= redis.call('ZCARD', KEYS[2]) then return false end
local found = {}
for i = 2, #ARGV, 2 do
  found[#found + 1] = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[i], ARGV[i + 1])
end
return found
"""

# A page of the index, with the changes since the last page.
# KEYS: d, h, e, m, j. ARGV: start, size, first number of the journal to read.
PAGE = """
local whole = redis.call('HLEN', KEYS[1]) == redis.call('ZCARD', KEYS[2])
return {redis.call('GET', KEYS[3]), redis.call('HGET', KEYS[4], 'index'), whole and 1 or 0,
  redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], '+', 'LIMIT', 0, ARGV[2]),
  redis.call('XRANGE', KEYS[5], ARGV[3], '+')}
"""
