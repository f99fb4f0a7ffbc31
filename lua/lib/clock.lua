-- Time and numbers. Lua's `..` prints a large integer as 1.7952390779913e+15, so every
-- number that leaves a script goes through `int`.

-- `%d` converts to a C `long`, which has 32 bits on some machines; on others it is much faster. The
-- first call finds out: many calls of scripts get by without it.
local whole_format
local function int(number)
  whole_format = whole_format
    or string.format('%d', 2 ^ 52) == '4503599627370496' and '%d' or '%.0f'
  return string.format(whole_format, number)
end

-- A score as the text of a whole number. Redis answers most scores in this form already.
local function whole(score)
  return string.find(score, '%D') and int(tonumber(score)) or score
end

-- A time in µs, given as text, in whole ms.
local function ms_of(stamp)
  return string.sub(stamp, 1, -4)
end

-- The server's clock, which alone decides which jobs are due: Unix µs, as a number and as text.
local function now_us()
  local time = redis.call('TIME')
  local stamp = time[1] .. string.sub('00000' .. time[2], -6)
  return tonumber(stamp), stamp
end

-- The due time that a caller asks for: '+ms' from now, or '@ms' since the epoch. Rounded up, so
-- that no job is early; a time in the past means now. Returned as a number and as text.
local function due_ms(when, now)
  local text = string.sub(when, 2)
  local ms, now_ms = tonumber(text), math.floor(now / 1000)
  if string.sub(when, 1, 1) == '+' then
    local due = ms == 0 and now_ms or math.ceil(now / 1000) + ms
    return due, int(due)
  elseif ms > now_ms then
    return ms, text
  end
  return now_ms, int(now_ms)
end
