-- Calls may be repeated. A client numbers the calls of a lane, upwards, one at a time; the
-- ledger remembers the last reply of each lane, answers a repeated number with it, and
-- refuses a lower one: an original that arrives after its repeat.

-- How long the last reply of a silent lane is kept. Far longer than any call is repeated.
local LANE_MEMORY_MS = 3600000

-- Returns 'new', 'again' with the reply remembered, or 'late'; whether the lane is known;
-- and what is kept here to be read along with it: the largest fencing value given out, and
-- the field `paused`.
local function recall(calls, lane, number)
  local found = redis.call('HMGET', calls, lane, 'fence', 'paused')
  local last, fence = found[1], tonumber(found[2] or 0) or 0
  if not last then
    return 'new', nil, false, fence, found[3]
  end
  local known, reply = string.match(last, '^(%d+) %d+ (.*)$')
  known = tonumber(known) or -1
  if number > known then
    return 'new', nil, true, fence, found[3]
  elseif number == known then
    return 'again', reply, true, fence, found[3]
  end
  return 'late', nil, true, fence, found[3]
end

-- The reply to a call that is no news: the one remembered, or a refusal. Nothing for a new
-- call; and whether its lane is known.
local function past_reply(calls, lane, number, now)
  local seen, reply, known = recall(calls, lane, number)
  if seen == 'late' then
    return {'late', int(now)}
  elseif seen == 'again' then
    return {'ok', int(now), reply}
  end
  return nil, known
end

-- Writes the reply, and whatever further fields are given. A lane met for the first time
-- makes room for itself: a few lanes that have been silent for long are forgotten.
local function remember(calls, lanes, lane, number, known, now, reply, ...)
  local at = math.floor(now / 1000)
  redis.call('HSET', calls, lane, int(number) .. ' ' .. int(at) .. ' ' .. reply, ...)
  if known then
    return
  end
  redis.pcall('ZADD', lanes, at, lane)
  local old = redis.pcall('ZRANGEBYSCORE', lanes, '-inf', at - LANE_MEMORY_MS, 'LIMIT', 0, 8)
  for _, silent in ipairs(old) do
    local last = redis.call('HGET', calls, silent)
    local used = last and tonumber(string.match(last, '^%d+ (%d+) '))
    if used and used > at - LANE_MEMORY_MS then
      redis.pcall('ZADD', lanes, used, silent)
    else
      redis.call('HDEL', calls, silent)
      redis.pcall('ZREM', lanes, silent)
    end
  end
end
