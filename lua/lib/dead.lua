-- Dead letters are kept by id and number, so that the same name can die twice: `dead` has
-- `id:number` by time of death; `grave` has the record under the same name, and under the plain id
-- the numbers of its last letters, so that they are found by the job key.

-- The number of letters of one id that can be found by the id alone.
local FOUND_BY_ID = 16

-- How many numbers are left out. The number of a letter is the count of letters buried so far plus
-- this value, which keeps it above the numbers of letters that came from another ledger.
local function skipped(stats_key)
  return tonumber(redis.call('HGET', stats_key, 'skipped') or 0) or 0
end

-- The number of the letter that is buried next.
local function next_number(stats_key)
  local buried = tonumber(redis.call('HGET', stats_key, 'buried') or 0) or 0
  return buried + skipped(stats_key) + 1
end

-- Files a letter. Number and time of death are given as text. A late letter gets its place among
-- the letters of its id.
local function file(dead_key, grave_key, id, number, died, record)
  local name = id .. ':' .. number
  local numbers = {tonumber(number)}
  for other in string.gmatch(redis.call('HGET', grave_key, id) or '', '%S+') do
    numbers[#numbers + 1] = tonumber(other)
  end
  table.sort(numbers)
  local last = {}
  for i = math.max(1, #numbers - FOUND_BY_ID + 1), #numbers do
    last[#last + 1] = int(numbers[i])
  end
  redis.call('ZADD', dead_key, died, name)
  redis.call('HSET', grave_key, name, record, id, table.concat(last, ' '))
end

local function bury(dead_key, grave_key, id, number, now_ms, record)
  file(dead_key, grave_key, id, int(number), int(now_ms), record)
end

local function unbury(dead_key, grave_key, name)
  local id, number = string.match(name, '^(.*):(%d+)$')
  redis.call('ZREM', dead_key, name)
  redis.call('HDEL', grave_key, name)
  local left = {}
  for other in string.gmatch(redis.call('HGET', grave_key, id) or '', '%S+') do
    if other ~= number then
      left[#left + 1] = other
    end
  end
  if #left > 0 then
    redis.call('HSET', grave_key, id, table.concat(left, ' '))
  else
    redis.call('HDEL', grave_key, id)
  end
end

-- Keeps the letters within the limits of count and age. For each limit it drops the oldest letters,
-- up to 16 more than have just come, so that an excess shrinks. Returns how many it dropped.
local function trim(dead_key, grave_key, most, most_ms, now_ms, came)
  local at_once = came + 16
  local old = redis.call('ZRANGEBYSCORE', dead_key, '-inf', int(now_ms - most_ms), 'LIMIT', 0,
    at_once)
  for _, name in ipairs(old) do
    unbury(dead_key, grave_key, name)
  end
  local over = math.min(members(dead_key) - most, at_once)
  local oldest = over > 0 and redis.call('ZRANGE', dead_key, 0, over - 1) or {}
  for _, name in ipairs(oldest) do
    unbury(dead_key, grave_key, name)
  end
  return #old + #oldest
end
