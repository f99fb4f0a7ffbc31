-- The memory of a ledger for calls outlives the ledger, for twice as long as a lane is remembered.
-- A ledger that begins anew meanwhile keeps it for good.
local OUTLIVES_MS = 7200000

-- When a key expires of which a user may not say that it is to stay.
local FAR_AHEAD_MS = '9007199254740991'

local function keep_for_a_while(at_ms, ...)
  for _, key in ipairs({...}) do
    redis.call('PEXPIREAT', key, int(at_ms + OUTLIVES_MS))
  end
end

local function keep_for_good(...)
  for _, key in ipairs({...}) do
    -- Redis 6.2 has no option to leave keys without an expiry alone.
    if type(redis.pcall('PERSIST', key)) == 'table'
      and type(redis.pcall('PEXPIREAT', key, FAR_AHEAD_MS, 'XX')) == 'table' then
      redis.pcall('PEXPIREAT', key, FAR_AHEAD_MS)
    end
  end
end

-- A ledger has accepted its first job: it is new, or its kind was dropped, or the database was
-- emptied. `fence` tells it from a ledger that never had any job. `unlisted` tells every client
-- that stores a job to make the kind known, until one of them has. Returns that mark.
local function begin_ledger(stamp, calls, ...)
  keep_for_good(calls, ...)
  redis.pcall('HSETNX', calls, 'fence', '0')
  redis.pcall('HSET', calls, 'unlisted', stamp)
  return stamp
end
