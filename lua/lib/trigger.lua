-- Triggers are hints: nothing here may fail the call, hence `pcall` throughout. A name is
-- written only where it is free or carries our marker; a foreign value is left alone.

-- Makes the trigger expire at `due`. Returns false if the job has to do without one.
local function arm(trigger, marker, due, now)
  local ahead = due * 1000 > now
  if ahead then
    local set = redis.pcall('SET', trigger, marker, 'NX', 'PXAT', int(due))
    if type(set) == 'table' and set.ok then
      return true
    end
  end
  local held = redis.pcall('GET', trigger)
  if held == marker then
    if ahead then
      redis.pcall('PEXPIREAT', trigger, int(due))
    else
      redis.pcall('DEL', trigger)
    end
    return true
  end
  return held == false
end

local function disarm(trigger, marker)
  if redis.pcall('GET', trigger) == marker then
    redis.pcall('DEL', trigger)
  end
end

-- The first due time that is still ahead, or nil. Read before anything is written.
local function soonest(due, now)
  local next_one = redis.call('ZRANGEBYSCORE', due, '(' .. int(math.floor(now / 1000)), '+inf',
    'WITHSCORES', 'LIMIT', 0, 1)
  return next_one[2] and tonumber(next_one[2])
end

-- Wakes the pacers if a job that was just written is due already, or sooner than all before.
local function wake(channel, subject, earliest, before, now)
  if earliest and (earliest * 1000 <= now or not before or earliest < before) then
    redis.pcall('PUBLISH', channel, 'due ' .. subject .. ' ' .. int(earliest))
  end
end
