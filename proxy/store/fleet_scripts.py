"""The scripts that concern the fleet as a whole: who is there, what is told, which policy holds."""

from proxy.store.lua import LOG, NOW, Script

PRESENCE = Script(
    "presence",
    NOW,
    LOG,
    """
-- KEYS: proxies, life, log, count, policy. ARGV: owner, presence ms, life for a store that has none, its ms, policy ms,
-- what to say of presence in the log ('': nothing). Returns {life, ms until the next one's end, owners...}
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
redis.call('PEXPIREAT', KEYS[1], tonumber(last[2]) + 1000)
redis.call('SET', KEYS[2], ARGV[3], 'NX')
redis.call('PEXPIRE', KEYS[2], ARGV[4])
if redis.call('EXISTS', KEYS[4]) == 0 then start_log(KEYS[3], KEYS[4]) end
redis.call('PEXPIRE', KEYS[3], ARGV[4])
redis.call('PEXPIRE', KEYS[4], ARGV[4])
redis.call('PEXPIRE', KEYS[5], ARGV[5])
local life = redis.call('GET', KEYS[2])
if ARGV[6] ~= '' then append(KEYS[3], KEYS[4], ARGV[1], 'x', ARGV[6]) end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local reply = {life, tonumber(first[2]) - now}
for _, owner in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do reply[#reply + 1] = owner end
return reply
""",
)

LEAVE = Script(
    "leave",
    NOW,
    LOG,
    """
-- KEYS: proxies, life, log, count. ARGV: owner.
if redis.call('ZREM', KEYS[1], ARGV[1]) == 1 then
  append(KEYS[3], KEYS[4], ARGV[1], 'x', 'left 0 ' .. (redis.call('GET', KEYS[2]) or ''))
end
return 1
""",
)

TELL = Script(
    "tell",
    NOW,
    LOG,
    """
-- KEYS: log, count. ARGV: owner, news.
append(KEYS[1], KEYS[2], ARGV[1], 'd', ARGV[2])
return 1
""",
)

POLICY = Script(
    "policy",
    """
-- KEYS: policy. ARGV: document, its ms, version, "after" (that version is there; 0: none) or "restore" (if none as new
-- is there).
-- Returns the version that is there now, or -1: refused.
local known = tonumber(redis.call('HGET', KEYS[1], 'version') or 0)
local version = tonumber(ARGV[3])
if ARGV[4] == 'after' then
  if known ~= version then return -1 end
  version = version + 1
elseif known >= version then
  return known
end
redis.call('HSET', KEYS[1], 'version', version, 'document', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return version
""",
)
