-- What a ledger remembers of calls outlives the ledger, twice as long as a lane is remembered. One that
-- begins anew meanwhile keeps it for good.
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
    -- Redis 6.2 cannot be told to leave alone what does not expire.
    if type(redis.pcall('PERSIST', key)) == 'table'
      and type(redis.pcall('PEXPIREAT', key, FAR_AHEAD_MS, 'XX')) == 'table' then
      redis.pcall('PEXPIREAT', key, FAR_AHEAD_MS)
    end
  end
end

-- A ledger has accepted its first job: it is new, or somebody dropped its kind or emptied the database.
-- By `fence` it is told from one that never had any. By `unlisted` whoever stores a job is told to make
-- the kind known, until one of them has. Returns that mark.
local function begin_ledger(stamp, calls, ...)
  keep_for_good(calls, ...)
  redis.pcall('HSETNX', calls, 'fence', '0')
  redis.pcall('HSET', calls, 'unlisted', stamp)
  return stamp
end
