-- Calls may be repeated. A client numbers the calls of a lane upwards and sends one at a time. The
-- ledger remembers the last reply of each lane, answers a repeated number with it, and refuses a
-- lower number: an original that arrives after its repeat. A call with an empty lane is always new.

-- How long the last reply of a silent lane is kept: far longer than any call is repeated.
local LANE_MEMORY_MS = 3600000

-- A call on named jobs has the argument `place`: the epoch of the layout by which the caller chose
-- this ledger, and behind it a `-` if the jobs belong to another ledger by now and stay here only
-- while they run.

local function is_old(place)
  return string.sub(place, -1) == '-'
end

-- The refusal of a call whose epoch differs from the epoch of the ledger; nil if they agree.
local function misplaced(layout, place, stamp)
  local epoch = layout and tonumber(string.match(layout, '^%d+ (%d+)')) or 0
  if tonumber(string.match(place, '^%d+')) ~= epoch then
    return {'stale', stamp, layout or ''}
  end
end

-- Returns 'new', 'again' or 'late'; the remembered reply, for 'again'; whether the lane is known;
-- the largest fencing value given out; and the fields `paused`, `history`, `layout`, `unlisted`,
-- `limit`, `archive` and `changes`.
local function recall(calls, lane, number)
  local found = redis.call('HMGET', calls, lane, 'fence', 'paused', 'history', 'layout',
    'unlisted', 'limit', 'archive', 'changes')
  local last, fence = found[1], tonumber(found[2] or 0) or 0
  if not last then
    return 'new', nil, false, fence, found[3], found[4], found[5], found[6], found[7], found[8],
      found[9]
  end
  local blank = string.find(last, ' ', 1, true)
  local known = blank and tonumber(string.sub(last, 1, blank - 1)) or -1
  if number > known then
    return 'new', nil, true, fence, found[3], found[4], found[5], found[6], found[7], found[8],
      found[9]
  elseif number == known then
    return 'again', string.match(last, '^%d+ %d+ (.*)$'), true, fence, found[3], found[4], nil,
      found[6]
  end
  return 'late', nil, true, fence, found[3], found[4]
end

-- The reply to a call that must not be carried out: the remembered reply, or a refusal if the call
-- is late or has another layout; nil for other calls. Also returns whether the lane is known, and
-- the fields `history`, `unlisted`, `limit`, `archive` and `changes`; the last two are nil if they
-- are missing.
local function past_reply(calls, lane, number, stamp, place)
  local seen, reply, known, _, _, history, layout, unlisted, limit, archive, changes =
    recall(calls, lane, number)
  if seen == 'late' then
    return {'late', stamp}
  elseif seen == 'again' then
    return {'ok', stamp, reply}, known, history, unlisted or nil
  end
  return place and misplaced(layout, place, stamp), known, history, unlisted or nil, limit,
    archive or nil, changes or nil
end

-- Writes the reply, and further fields if given. Number and time are text. A new lane makes room
-- for itself: a few lanes that were silent for long are forgotten. If the ledger remembers nothing
-- else, a call that found nothing is remembered for two hours only.
local function remember(calls, lanes, lane, number, known, stamp, reply, ...)
  if lane == '' then
    return
  end
  local at_ms = string.sub(stamp, 1, -4)
  local is_first = not known and redis.call('HLEN', calls) == 0
  redis.call('HSET', calls, lane, number .. ' ' .. at_ms .. ' ' .. reply, ...)
  if known then
    return
  end
  local at = tonumber(at_ms)
  redis.pcall('ZADD', lanes, at, lane)
  -- The first word of a reply that found no job. A claim without jobs replies nothing. A series that
  -- is planned, and has stored no job, had none.
  local word = is_first and string.match(reply, '^%a*')
  if word == '' or word == 'absent' or word == 'gone' or word == 'changed' or word == 'planned' then
    keep_for_a_while(at, calls, lanes)
  end
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

-- The most calls that are searched for the last one.
local MOST_CALLS = 4096

-- Fields that are no lanes, and begin with two numbers as the calls of lanes do.
local NO_LANES = {archive = true, changes = true, copy = true, layout = true, limit = true,
  waiting = true}

-- The time of the last remembered call, Unix ms; 0 if there is none, now if there are more than
-- `MOST_CALLS`.
local function last_call(calls, now)
  if redis.call('HLEN', calls) > MOST_CALLS then
    return math.floor(now / 1000)
  end
  local last = 0
  local all = redis.call('HGETALL', calls)
  for i = 1, #all, 2 do
    local at = not NO_LANES[all[i]] and string.match(all[i + 1], '^%d+ (%d+) ')
    last = math.max(last, tonumber(at or 0))
  end
  return last
end
