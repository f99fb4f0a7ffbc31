-- Time and numbers. Lua's `..` prints a large integer as 1.7952390779913e+15, so every
-- number that leaves a script goes through `int`.

local function int(number)
  return string.format('%.0f', number)
end

-- A score as text. Redis answers with whole numbers as they are.
local function whole(score)
  return string.find(score, '%D') and int(tonumber(score)) or score
end

-- The server's clock, the only one that decides what is due: Unix µs.
local function now_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- What a caller means by a time: '+ms' from now, or '@ms' since the epoch. Rounded up, so
-- that nothing is early; the past means now.
local function due_ms(when, now)
  local ms = tonumber(string.sub(when, 2))
  local due = ms
  if string.sub(when, 1, 1) == '+' then
    if ms == 0 then
      return math.floor(now / 1000)
    end
    due = math.ceil(now / 1000) + ms
  end
  return math.max(due, math.floor(now / 1000))
end
