"""The Lua scripts that arbitrate. They know leases, epochs and limits, and nothing of how a backend is chosen.

Theory of operation. A lease is one member per seat in a sorted set, `OWNER/NONCE#SEAT`, scored by its expiry in ms of
the store's own clock, so clocks of proxies do not matter. All seats of a nonce carry one score: they live and die
together. Occupancy is the number of unexpired members, never a counter, so nothing can leak. Every script may be said
again with the same arguments: what was done is found by nonce and not done twice. The epoch in a backend's hash fences:
an older one is refused, a newer one voids all leases of the engine that died. Only declared keys are touched; all carry
one hash tag. Scripts run unchanged on Redis 7 and Valkey 8 and 9. They carry no flags: so a full memory (OOM) denies
only what would grow it, a release still goes through, and a script that has begun to write is never cut short.
"""

import hashlib
from typing import Final

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# `flag` tells a draining flag that was lifted (0) from one that the store does not have or lost (-1).
_TRUTH = """
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
  return #members, mine
end
"""

# `fence` returns the epoch that counts. `bound` gives the set of leases the life of its longest lease.
_LEASES = """
local function purge(leases)
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
end
local function bound(leases)
  local last = redis.call('ZREVRANGE', leases, 0, 0, 'WITHSCORES')
  if last[2] then redis.call('PEXPIREAT', leases, tonumber(last[2]) + 1000) end
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
local function take(leases, member, seats, lease_ttl)
  for seat = 0, seats - 1 do redis.call('ZADD', leases, now + lease_ttl, member .. '#' .. seat) end
end
"""


class Script:
    """A script with the name under which the store keeps it."""

    def __init__(self, name: str, *parts: str) -> None:
        self.name = name
        self.text: Final = "".join(parts)
        self.sha: Final = hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324 - the name that EVALSHA defines

    def command(self, keys: tuple[str, ...], arguments: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """The command that runs it by name."""
        return ("EVALSHA", self.sha, len(keys), *keys, *arguments)


CLAIM = Script(
    "claim",
    _NOW,
    _TRUTH,
    _LEASES,
    """
-- KEYS: leases, backend, draining. ARGV: owner/, nonce, seats, running limit, epoch, lease ms, record ms
local leases, backend, prefix = KEYS[1], KEYS[2], ARGV[1]
local member, seats, epoch = prefix .. ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local lease_ttl, record_ttl = tonumber(ARGV[6]), tonumber(ARGV[7])
local known = fence(leases, backend, epoch, lease_ttl, record_ttl)
purge(leases)
local limit = limit_of(backend, tonumber(ARGV[4]))
local draining = flag(KEYS[3])
local total, mine = truth(leases, prefix)
local held = redis.call('ZSCORE', leases, member .. '#0')
local granted = 0
if epoch >= known then
  if held then
    granted = 1
  elseif draining ~= 1 and (seats == 0 or total + seats <= limit) then
    granted = 1
    total = total + seats
    mine = mine + seats
  end
end
if granted == 1 and seats > 0 then
  take(leases, member, seats, lease_ttl)
  bound(leases)
end
return {granted, total, mine, draining, known, limit}
""",
)

RELEASE = Script(
    "release",
    """
-- KEYS: leases. ARGV: owner/, nonce. Returns the number of seats freed.
local freed = 0
while redis.call('ZREM', KEYS[1], ARGV[1] .. ARGV[2] .. '#' .. freed) == 1 do freed = freed + 1 end
return freed
""",
)

RENEW = Script(
    "renew",
    _NOW,
    _TRUTH,
    _LEASES,
    """
-- KEYS: leases, backend, draining. ARGV: owner/, running limit, lease ms, record ms, then for each nonce of this owner:
-- nonce, seats, epoch, stand ("held": keep, or take again if there is room; "must": take again in any case; "asked": a
-- claim is under way, keep if it is there; "gone": drop). Nonces that are not named stay as they are: this call may be
-- late, and they newer.
-- Returns {total, mine, draining, epoch (-1: none), limit, n, n nonces lost by expiry..., nonces void by epoch...}
local leases, backend, prefix = KEYS[1], KEYS[2], ARGV[1]
local lease_ttl, record_ttl = tonumber(ARGV[3]), tonumber(ARGV[4])
purge(leases)
local known = tonumber(redis.call('HGET', backend, 'epoch'))
for i = 5, #ARGV, 4 do
  local stand = ARGV[i + 3]
  if stand == 'held' or stand == 'must' then
    known = fence(leases, backend, tonumber(ARGV[i + 2]), lease_ttl, record_ttl)
  elseif stand == 'gone' then
    for seat = 0, ARGV[i + 1] - 1 do redis.call('ZREM', leases, prefix .. ARGV[i] .. '#' .. seat) end
  end
end
local limit = limit_of(backend, tonumber(ARGV[2]))
local total = redis.call('ZCARD', leases)
local lost, void = {}, {}
for i = 5, #ARGV, 4 do
  local nonce, seats, epoch, stand = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]
  local member = prefix .. nonce
  if stand ~= 'gone' then
    if known and epoch < known then
      if stand ~= 'asked' then void[#void + 1] = nonce end
    elseif redis.call('ZSCORE', leases, member .. '#0') then
      take(leases, member, seats, lease_ttl)
    elseif stand ~= 'asked' then
      if stand == 'must' or seats == 0 or total + seats <= limit then
        take(leases, member, seats, lease_ttl)
        total = total + seats
      else
        lost[#lost + 1] = nonce
      end
    end
  end
end
bound(leases)
local mine
total, mine = truth(leases, prefix)
local reply = {total, mine, flag(KEYS[3]), known or -1, limit, #lost}
for _, nonce in ipairs(lost) do reply[#reply + 1] = nonce end
for _, nonce in ipairs(void) do reply[#reply + 1] = nonce end
return reply
""",
)

HEARTBEAT = Script(
    "heartbeat",
    _NOW,
    _TRUTH,
    _LEASES,
    """
-- KEYS: leases, backend, draining, backends. ARGV: owner/, backend id, epoch, running limit, facts, lease ms, record
-- ms, draining ms. Facts of an older epoch change nothing. Of several announced limits the smallest holds for one
-- record time after it was last announced; its announcer may raise it at once.
local leases, backend, prefix = KEYS[1], KEYS[2], ARGV[1]
local epoch, limit, lease_ttl, record_ttl = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[7])
local known = fence(leases, backend, epoch, lease_ttl, record_ttl)
if epoch >= known then
  local stored = redis.call('HMGET', backend, 'limit', 'limit_until', 'limit_by')
  if not stored[1] or limit <= tonumber(stored[1]) or tonumber(stored[2]) <= now or stored[3] == prefix then
    redis.call('HSET', backend, 'limit', limit, 'limit_until', now + record_ttl, 'limit_by', prefix)
  end
  redis.call('HSET', backend, 'facts', ARGV[5], 'heartbeat_ms', now, 'heartbeat_by', prefix)
  redis.call('PEXPIRE', backend, record_ttl)
  redis.call('ZADD', KEYS[4], now + record_ttl, ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
  redis.call('PEXPIRE', KEYS[4], record_ttl)
end
local draining = flag(KEYS[3])
if draining >= 0 then redis.call('PEXPIRE', KEYS[3], ARGV[8]) end
local total, mine = truth(leases, prefix)
return {total, mine, draining, known, limit_of(backend, limit)}
""",
)

OCCUPANCY = Script(
    "occupancy",
    _NOW,
    _TRUTH,
    """
-- KEYS: leases and draining of each backend. ARGV: owner/. Reads only.
local reply = {}
for i = 1, #KEYS, 2 do
  local total, mine = truth(KEYS[i], ARGV[1])
  reply[#reply + 1] = {total, mine, flag(KEYS[i + 1])}
end
return reply
""",
)

DRAIN = Script(
    "drain",
    """
-- KEYS: draining. ARGV: "1" or "0", draining ms, "set" or "restore" (only if there is none). A lifted flag stays for as
-- long as one that is set, so that nobody takes it for lost.
if ARGV[3] == 'set' or redis.call('EXISTS', KEYS[1]) == 0 then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return 1
""",
)

PRESENCE = Script(
    "presence",
    _NOW,
    """
-- KEYS: proxies. ARGV: owner, presence ms. Returns the owners.
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
redis.call('PEXPIREAT', KEYS[1], tonumber(last[2]) + 1000)
return redis.call('ZRANGE', KEYS[1], 0, -1)
""",
)

LISTING = Script(
    "listing",
    _NOW,
    _TRUTH,
    """
-- KEYS: leases, backend, draining. Returns {epoch, limit, facts, heartbeat age in ms, by whom, draining, seats}, or nil
local record = redis.call('HMGET', KEYS[2], 'epoch', 'limit', 'facts', 'heartbeat_ms', 'heartbeat_by')
if not record[4] then return false end
local total = truth(KEYS[1], '')
local draining = flag(KEYS[3])
return {tonumber(record[1]), tonumber(record[2]), record[3], now - record[4], record[5], draining, total}
""",
)

SCRIPTS: Final = {
    script.sha: script for script in (CLAIM, RELEASE, RENEW, HEARTBEAT, OCCUPANCY, DRAIN, PRESENCE, LISTING)
}
"""All scripts by the name that EVALSHA knows."""
