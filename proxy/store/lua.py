"""What the scripts are made of: Lua functions that several of them need, and a script with its name."""

import hashlib
from typing import Final

from proxy.store.keys import LOG_MAX_ENTRIES, LOG_TTL_MS

Arguments = tuple[str | int | bytes, ...]

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# `flag` tells a draining flag that was lifted (0) from one that the store does not have or lost (-1).
TRUTH = """
local function flag(draining)
  local value = redis.call('GET', draining)
  return value and tonumber(value) or -1
end
local function truth(leases, prefix)
  local members = redis.call('ZRANGEBYSCORE', leases, '(' .. now, '+inf')
  local mine = 0
  for _, member in ipairs(members) do
    if string.sub(member, 1, #prefix) == prefix then mine = mine + 1 end
  end
  return #members, mine, members
end
"""

# `fence` returns the epoch that counts. `bound` gives a key the life of the longest lease. `may_name` tells whether a
# lease may name a slot: no live lease has it, and none is at a slot that nobody knows. `name` notes a slot if it is
# free. `stay`: the sign of a proxy that is there ends no earlier than its leases.
LEASES = """
local function purge(leases)
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
end
local function bound(key, leases)
  local last = redis.call('ZREVRANGE', leases, 0, 0, 'WITHSCORES')
  if last[2] then redis.call('PEXPIREAT', key, tonumber(last[2]) + 1000) end
end
local function may_name(slots, slot, members)
  local live, taken = {}, false
  for _, member in ipairs(members) do
    local lease = string.match(member, '^(.*)#0$')
    if lease then live[lease] = true end
  end
  local entries = redis.call('HGETALL', slots)
  for i = 1, #entries, 2 do
    if live[entries[i + 1]] == nil then
      redis.call('HDEL', slots, entries[i])
    else
      live[entries[i + 1]] = false
      taken = taken or entries[i] == slot
    end
  end
  for _, unnamed in pairs(live) do
    if unnamed then return false end
  end
  return not taken
end
local function name(slots, slot, leases, member)
  local holder = redis.call('HGET', slots, slot)
  if not holder or not redis.call('ZSCORE', leases, holder .. '#0') then redis.call('HSET', slots, slot, member) end
end
local function unname(slots, slot, member)
  if slot ~= '' and redis.call('HGET', slots, slot) == member then redis.call('HDEL', slots, slot) end
end
local function fence(leases, backend, epoch, lease_ttl, record_ttl)
  local known = tonumber(redis.call('HGET', backend, 'epoch'))
  if known and epoch < known then return known end
  if known ~= epoch then
    redis.call('HSET', backend, 'epoch', epoch)
    if known then redis.call('DEL', leases) end
  end
  if redis.call('PTTL', backend) < 2 * lease_ttl then redis.call('PEXPIRE', backend, record_ttl) end
  return epoch
end
local function limit_of(backend, asked)
  local stored = redis.call('HMGET', backend, 'limit', 'limit_until')
  if stored[1] and tonumber(stored[2]) > now then return math.min(asked, tonumber(stored[1])) end
  return asked
end
local function stay(proxies, prefix, lease_ttl)
  redis.call('ZADD', proxies, 'XX', 'GT', now + lease_ttl, string.sub(prefix, 1, -2))
end
local function take(leases, member, seats, lease_ttl)
  for seat = 0, seats - 1 do redis.call('ZADD', leases, now + lease_ttl, member .. '#' .. seat) end
end
"""

# An entry's number is one more than the last one's, so that a reader sees a gap. A store without history starts at its
# time in microseconds, above any number that it gave before it lost its data. `%.0f`: Lua shows large numbers otherwise
# with an exponent.
LOG = f"""
local function start_log(log, count)
  redis.call('SET', count, string.format('%.0f', time[1] * 1000000 + time[2]), 'PX', {LOG_TTL_MS})
  redis.call('DEL', log)
end
local function append(log, count, owner, field, value)
  local number = redis.call('INCR', count)
  if number == 1 then
    start_log(log, count)
    number = redis.call('INCR', count)
  end
  local id = string.format('%.0f-0', number)
  redis.call('XADD', log, 'MAXLEN', '~', {LOG_MAX_ENTRIES}, id, 'o', owner, field, value)
  redis.call('PEXPIRE', log, {LOG_TTL_MS})
  redis.call('PEXPIRE', count, {LOG_TTL_MS})
end
"""


class Script:
    """A script with the name under which the store keeps it."""

    def __init__(self, name: str, *parts: str) -> None:
        self.name = name
        self.text: Final = "".join(parts)
        self.sha: Final = hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324 - the name that EVALSHA defines

    def command(self, keys: tuple[str, ...], arguments: Arguments) -> tuple[str | int | bytes, ...]:
        """The command that runs it by name."""
        return ("EVALSHA", self.sha, len(keys), *keys, *arguments)
