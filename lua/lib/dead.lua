-- Dead letters are kept by id and number, so that the same name can die twice: `dead` holds
-- `id:number` by the time of death, `grave` the record under the same name, and under the
-- plain id the numbers of its last letters, so that a letter is found by its key.

-- How many letters of one id can be found by the id alone.
local FOUND_BY_ID = 16

local function bury(dead_key, grave_key, id, number, now_ms, record)
  local name = id .. ':' .. int(number)
  local numbers = redis.call('HGET', grave_key, id)
  numbers = (numbers and numbers .. ' ' or '') .. int(number)
  local _, count = string.gsub(numbers, '%S+', '')
  if count > FOUND_BY_ID then
    numbers = string.gsub(numbers, '^%S+ ', '', 1)
  end
  redis.call('ZADD', dead_key, int(now_ms), name)
  redis.call('HSET', grave_key, name, record, id, numbers)
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

-- Keeps the letters within their limits of count and age, a few more at a time than have just
-- come, so that they never grow beyond. Returns how many were dropped.
local function trim(dead_key, grave_key, most, most_ms, now_ms, came)
  local at_once = came + 16
  local old = redis.call('ZRANGEBYSCORE', dead_key, '-inf', int(now_ms - most_ms), 'LIMIT', 0,
    at_once)
  for _, name in ipairs(old) do
    unbury(dead_key, grave_key, name)
  end
  local over = math.min(redis.call('ZCARD', dead_key) - most, at_once)
  local oldest = over > 0 and redis.call('ZRANGE', dead_key, 0, over - 1) or {}
  for _, name in ipairs(oldest) do
    unbury(dead_key, grave_key, name)
  end
  return #old + #oldest
end
