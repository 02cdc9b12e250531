"""The scripts of named locks: taken by one nonce, kept while it is renewed, dropped by that nonce only."""

from proxy.store.lua import Script

LOCK = Script(
    "lock",
    """
-- KEYS: lock. ARGV: nonce, its ms, what others shall read of the holder. Takes the lock, or keeps it: saying it again
-- does no more. Returns {1, ''} or {0, what the holder wrote}.
local held = redis.call('HGET', KEYS[1], 'nonce')
if held and held ~= ARGV[1] then return {0, redis.call('HGET', KEYS[1], 'note') or ''} end
redis.call('HSET', KEYS[1], 'nonce', ARGV[1], 'note', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, ''}
""",
)

UNLOCK = Script(
    "unlock",
    """
-- KEYS: lock. ARGV: nonce. Returns 1: it was held by that nonce, and is free now.
if redis.call('HGET', KEYS[1], 'nonce') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1
""",
)
