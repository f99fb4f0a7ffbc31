-- The order of a sorted set: by score, and for equal scores by the bytes of the member. Lua's own
-- `<` compares texts by the locale of the server.

local function comes_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

-- The number of members before this one, and whether it exists. Many members can share a score, so
-- a binary search finds the place among them.
local function place_of(key, score, member)
  local first = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local low, high = first, first + redis.call('ZCOUNT', key, score, score)
  local behind = high
  while low < high do
    local middle = math.floor((low + high) / 2)
    if comes_before(redis.call('ZRANGE', key, middle, middle)[1], member) then
      low = middle + 1
    else
      high = middle
    end
  end
  local there = low < behind and redis.call('ZRANGE', key, low, low)[1] == member
  return low, there
end
