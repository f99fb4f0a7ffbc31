-- The memory of calls outlives its ledger for two hours, twice as long as a silent lane is
-- remembered. A ledger that begins anew meanwhile keeps that memory for good.
local OUTLIVES_MS = 7200000

-- The expiry, Unix ms, of a key that is to stay, if the user may not call `PERSIST`.
local FAR_AHEAD_MS = '9007199254740991'

local function keep_for_a_while(at_ms, ...)
  for _, key in ipairs({...}) do
    redis.call('PEXPIREAT', key, int(at_ms + OUTLIVES_MS))
  end
end

local function keep_for_good(...)
  for _, key in ipairs({...}) do
    -- The option `XX`, which passes over keys without an expiry, came with Redis 7.0.
    if type(redis.pcall('PERSIST', key)) == 'table'
      and type(redis.pcall('PEXPIREAT', key, FAR_AHEAD_MS, 'XX')) == 'table' then
      redis.pcall('PEXPIREAT', key, FAR_AHEAD_MS)
    end
  end
end

-- Marks a ledger that has accepted its first job: it is new, or its kind was dropped, or the
-- database was emptied. `fence` tells it from a ledger that never had a job. `unlisted` tells every
-- client that stores a job to register the kind, until one has done so. Returns `unlisted`.
local function begin_ledger(stamp, calls, ...)
  keep_for_good(calls, ...)
  redis.pcall('HSETNX', calls, 'fence', '0')
  redis.pcall('HSET', calls, 'unlisted', stamp)
  return stamp
end
