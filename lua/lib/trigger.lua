-- Triggers are hints: nothing here may fail the call, hence `pcall` throughout. A name is written
-- only if it is free or holds our marker; a foreign value stays.

-- The beginning of the value under the name of a trigger, long enough to tell our marker from a
-- foreign value, which may be large.
local function held(trigger, marker)
  return redis.pcall('GETRANGE', trigger, 0, #marker)
end

-- The last due time, as text, and whether it is still ahead. Neighbours in a batch mostly share it.
local asked_due, was_ahead

-- Makes the trigger of a job expire at `due`, given as text. Returns false if the job gets no
-- trigger. `record` is nil for a new job. An adopted job gets a trigger only under a name of ours:
-- the key under its own name belongs to another program.
local function arm(trigger, marker, due, now, record)
  if record and adopted_from(record) and not string.find(trigger, '}:trigger:', 1, true) then
    return false
  end
  if due ~= asked_due then
    asked_due, was_ahead = due, tonumber(due) * 1000 > now
  end
  if was_ahead then
    -- `false` if the name is taken.
    local set = redis.pcall('SET', trigger, marker, 'NX', 'PXAT', due)
    if set then
      return set.ok ~= nil
    end
  end
  local value = held(trigger, marker)
  if value == marker then
    if was_ahead then
      redis.pcall('PEXPIREAT', trigger, due)
    else
      redis.pcall('DEL', trigger)
    end
    return true
  end
  return value == '' and not was_ahead
end

local function disarm(trigger, marker)
  if held(trigger, marker) == marker then
    redis.pcall('DEL', trigger)
  end
end

-- The earliest due time that is still ahead of `stamp`, or nil. Read before anything is written.
-- The scores beyond are those of due jobs; see `lib/waiting.lua`.
local function soonest(due, stamp)
  local next_one = redis.call('ZRANGEBYSCORE', due, '(' .. ms_of(stamp), '(4e15', 'WITHSCORES',
    'LIMIT', 0, 1)
  return next_one[2] and tonumber(next_one[2])
end

-- Notes that a job was made pending: the soonest due time that is still ahead, and the jobs
-- that are due already, which no trigger will announce.
local function note(news, id, due, now)
  if due * 1000 <= now then
    news[#news + 1] = id
  elseif not news.soonest or due < news.soonest then
    news.soonest = due
  end
end

-- The pacer hears of a due time that is nearer than this, even if it is not the earliest. Longer
-- than `READ_AGAIN`, the time for which the pacer relies on its last read.
local NEAR_MS = 50

-- Tells the workers which jobs are due, and the pacer of a due time that is sooner than all before,
-- or so near that the pacer may have read past it.
local function wake(channel, subject, news, before, now)
  if #news > 0 then
    redis.pcall('PUBLISH', channel, 'now ' .. subject .. ' ' .. table.concat(news, ' '))
  end
  local next_one = news.soonest
  if next_one and (not before or next_one < before or (next_one - NEAR_MS) * 1000 <= now) then
    redis.pcall('PUBLISH', channel, 'due ' .. subject .. ' ' .. int(next_one))
  end
end
