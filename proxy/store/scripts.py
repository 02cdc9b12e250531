"""The Lua scripts that arbitrate. They know leases, epochs and limits, and nothing of how a backend is chosen.

Theory of operation. A lease is one member per seat in a sorted set, `OWNER/NONCE#SEAT`, scored by its expiry in ms of
the store's own clock, so clocks of proxies do not matter. All seats of a nonce carry one score: they live and die
together. Occupancy is the number of unexpired members, never a counter, so nothing can leak. Every script may be said
again with the same arguments: what was done is found by nonce and not done twice. The epoch in a backend's hash fences:
an older one is refused, a newer one voids all leases of the engine that died. Only declared keys are touched; all carry
one hash tag.

A claim names the *life* of the store that its proxy has told the truth to: one that lost its data has another, and
grants nothing to a proxy that has not told it anew. News goes into the log in the same step as what it tells of, and
only if that happened now and not when it was said before.

Scripts run unchanged on Redis 7 and Valkey 8 and 9. They carry no flags: so a full memory (OOM) denies only what would
grow it, a release still goes through, and a script that has begun to write is never cut short.
"""

from typing import Final

from proxy.store.fleet_scripts import LEAVE, POLICY, PRESENCE, TELL
from proxy.store.lock_scripts import LOCK, UNLOCK
from proxy.store.lua import LEASES, LOG, NOW, TRUTH, Script

CLAIM = Script(
    "claim",
    NOW,
    TRUTH,
    LEASES,
    LOG,
    """
-- KEYS: leases, backend, draining, slots, life, log, count, proxies. ARGV: owner/, nonce, seats, running limit, epoch,
-- lease ms, record ms, life, most seats of this owner (-1: any number), slot ('': none), news ('': none).
-- Returns {granted, total, mine, draining, epoch, limit, refused only because of the slot}, or {-1}: another life.
if redis.call('GET', KEYS[5]) ~= ARGV[8] then return {-1} end
local leases, backend, slots, prefix = KEYS[1], KEYS[2], KEYS[4], ARGV[1]
local member, seats, epoch = prefix .. ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local lease_ttl, record_ttl, most, slot = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[9]), ARGV[10]
local known = fence(leases, backend, epoch, lease_ttl, record_ttl)
purge(leases)
local limit = limit_of(backend, tonumber(ARGV[4]))
local draining = flag(KEYS[3])
local total, mine, members = truth(leases, prefix)
local held = redis.call('ZSCORE', leases, member .. '#0')
local granted, slot_refused = 0, 0
if epoch >= known then
  if held then
    granted = 1
  elseif draining ~= 1 and (seats == 0 or total + seats <= limit and (most < 0 or mine + seats <= most)) then
    if seats > 0 and slot ~= '' and not may_name(slots, slot, members) then
      slot_refused = 1
    else
      granted = 1
      total = total + seats
      mine = mine + seats
    end
  end
end
if granted == 1 and seats > 0 then
  take(leases, member, seats, lease_ttl)
  bound(leases, leases)
  stay(KEYS[8], prefix, lease_ttl)
  if slot ~= '' then
    name(slots, slot, leases, member)
    bound(slots, leases)
  end
  if not held and ARGV[11] ~= '' then append(KEYS[6], KEYS[7], string.sub(prefix, 1, -2), 'd', ARGV[11]) end
end
return {granted, total, mine, draining, known, limit, slot_refused}
""",
)

RELEASE = Script(
    "release",
    NOW,
    LEASES,
    LOG,
    """
-- KEYS: leases, slots, log, count. ARGV: owner/, nonce, slot, news. Returns the number of seats freed.
local member, freed = ARGV[1] .. ARGV[2], 0
while redis.call('ZREM', KEYS[1], member .. '#' .. freed) == 1 do freed = freed + 1 end
unname(KEYS[2], ARGV[3], member)
if freed > 0 and ARGV[4] ~= '' then append(KEYS[3], KEYS[4], string.sub(ARGV[1], 1, -2), 'd', ARGV[4]) end
return freed
""",
)

RENEW = Script(
    "renew",
    NOW,
    TRUTH,
    LEASES,
    LOG,
    """
-- KEYS: leases, backend, draining, slots, log, count, proxies, life. ARGV: owner/, running limit, lease ms, record ms,
-- life, most seats of this owner (-1: any number), then for each nonce of this owner: nonce, seats, epoch, stand, slot,
-- news. Stands: "held": keep, or take again if there is
-- room; "must": take again in any case; "asked": a claim is under way, keep if it is there; "gone": drop, and tell the
-- news if it was there; "over": drop and tell, it ended while the store was away. Nonces that are not named stay as
-- they are: this call may be late, and they newer.
-- Returns {total, mine, draining, epoch (-1: none), limit, n, n nonces lost by expiry..., nonces void by epoch...}, or
-- {-1}: another life, in which what looks free may be what others have yet to tell.
if redis.call('GET', KEYS[8]) ~= ARGV[5] then return {-1} end
local leases, backend, slots, prefix = KEYS[1], KEYS[2], KEYS[4], ARGV[1]
local lease_ttl, record_ttl, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[6])
purge(leases)
local known = tonumber(redis.call('HGET', backend, 'epoch'))
for i = 7, #ARGV, 6 do
  local member, stand = prefix .. ARGV[i], ARGV[i + 3]
  if stand == 'held' or stand == 'must' then
    known = fence(leases, backend, tonumber(ARGV[i + 2]), lease_ttl, record_ttl)
  elseif stand ~= 'asked' then
    local freed = stand == 'over'
    for seat = 0, ARGV[i + 1] - 1 do
      if redis.call('ZREM', leases, member .. '#' .. seat) == 1 then freed = true end
    end
    unname(slots, ARGV[i + 4], member)
    if freed and ARGV[i + 5] ~= '' then append(KEYS[5], KEYS[6], string.sub(prefix, 1, -2), 'd', ARGV[i + 5]) end
  end
end
local limit = limit_of(backend, tonumber(ARGV[2]))
local total, mine = truth(leases, prefix)
local lost, void = {}, {}
for i = 7, #ARGV, 6 do
  local nonce, seats, epoch, stand = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]
  local member, slot = prefix .. nonce, ARGV[i + 4]
  if stand ~= 'gone' and stand ~= 'over' then
    local kept = false
    if known and epoch < known then
      if stand ~= 'asked' then void[#void + 1] = nonce end
    elseif redis.call('ZSCORE', leases, member .. '#0') then
      kept = true
    elseif stand ~= 'asked' then
      if stand == 'must' or seats == 0 or total + seats <= limit and (most < 0 or mine + seats <= most) then
        total = total + seats
        mine = mine + seats
        kept = true
      else
        lost[#lost + 1] = nonce
      end
    end
    if kept then
      take(leases, member, seats, lease_ttl)
      if slot ~= '' and seats > 0 then name(slots, slot, leases, member) end
    end
  end
end
bound(leases, leases)
bound(slots, leases)
total, mine = truth(leases, prefix)
if mine > 0 then stay(KEYS[7], prefix, lease_ttl) end
local reply = {total, mine, flag(KEYS[3]), known or -1, limit, #lost}
for _, nonce in ipairs(lost) do reply[#reply + 1] = nonce end
for _, nonce in ipairs(void) do reply[#reply + 1] = nonce end
return reply
""",
)

HEARTBEAT = Script(
    "heartbeat",
    NOW,
    TRUTH,
    LEASES,
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
    NOW,
    TRUTH,
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

LISTING = Script(
    "listing",
    NOW,
    TRUTH,
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
    script.sha: script
    for script in (
        *(CLAIM, RELEASE, RENEW, HEARTBEAT, OCCUPANCY, DRAIN, LISTING),
        *(PRESENCE, LEAVE, TELL, POLICY, LOCK, UNLOCK),
    )
}
"""All scripts by the name that EVALSHA knows."""
