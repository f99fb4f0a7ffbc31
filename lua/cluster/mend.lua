-- mend: a step on the way of a key of a ledger from a node that does not serve its slot to the one
-- that does, where this runs. What comes is kept aside, in the same slot, until it is complete and
-- gone from the other node; only then it is joined with what is here. Each step may be repeated.
--
-- KEYS  1 lock     keyfall:{app:module:biz/0}:mending
--       2 aside    keyfall:{app:module:biz/0}:mending:copying:shadow, …:copied:…, …:moved:…
--       3 key      what it becomes: its next name aside, or keyfall:{app:module:biz/0}:shadow
-- ARGV  1 token of whoever mends, 2 step: begin | put | rename | join, then of put a command and its
--       arguments behind the key, of join the part, how many fields or members at the most, and
--       `replace` where what comes is newer than what was there before the ledger was torn
-- Reply one word:
--       ok           done
--       more         there is more to join
--       busy         somebody else mends this ledger, or did a moment ago
--       clash name   both have a dead letter of this name, and they differ; or keys of two types
-- Rules: to replace, a key that was there before, which has the placeholder, gives way as a whole.
--       Otherwise what is only aside is added, and of what is on both sides this one stays, which
--       began later; but counters are added up (`stats`), of fences and turns the larger counts
--       (`calls`), and a dead letter is never given up (`grave`).

local LOCKED_MS = 30000
local lock, aside, key = KEYS[1], KEYS[2], KEYS[3]
local token, step = ARGV[1], ARGV[2]
local holder = redis.call('GET', lock)
if (step ~= 'begin' or holder) and holder ~= token then
  return 'busy'
end
redis.call('SET', lock, token, 'PX', LOCKED_MS)

if step == 'begin' then
  return 'ok'
elseif step == 'put' then
  redis.call(ARGV[3], aside, unpack(ARGV, 4))
  return 'ok'
end
-- To join.
local rule, most, replaces = ARGV[3], tonumber(ARGV[4]), ARGV[5] == 'replace'
if redis.call('EXISTS', aside) == 0 then
  return 'ok'
end
local kind = redis.call('TYPE', aside).ok
local look = {hash = 'HGET', zset = 'ZSCORE'}
local placeholder = look[kind] and redis.pcall(look[kind], key, ':')
local was_there = not look[kind] or type(placeholder) == 'string'
if step == 'rename' or redis.call('EXISTS', key) == 0 or replaces and was_there then
  redis.call('RENAME', aside, key)
  return 'ok'
end
if kind ~= redis.call('TYPE', key).ok then
  return 'clash ' .. key
end

-- The numbers of the letters of one id, of both sides.
local function both(one, other)
  local numbers, known = {}, {}
  for number in string.gmatch(one .. ' ' .. other, '%d+') do
    if not known[number] then
      known[number] = true
      numbers[#numbers + 1] = number
    end
  end
  table.sort(numbers, function(a, b) return tonumber(a) < tonumber(b) end)
  return table.concat(numbers, ' ')
end

local function join_field(field, value)
  local here = redis.call('HGET', key, field)
  if not here then
    redis.call('HSET', key, field, value)
  elseif field == ':' or here == value and rule ~= 'stats' then
    return
  elseif rule == 'stats' then
    -- A text that is no number counts as 0.
    redis.pcall('HINCRBY', key, field, value)
  elseif rule == 'calls' and (field == 'fence' or field == 'turn') then
    if (tonumber(value) or 0) > (tonumber(here) or 0) then
      redis.call('HSET', key, field, value)
    end
  elseif rule == 'grave' and string.find(field, ':', 1, true) then
    return 'clash ' .. field
  elseif rule == 'grave' then
    redis.call('HSET', key, field, both(here, value))
  end
end

if kind == 'hash' then
  local page = redis.call('HSCAN', aside, 0, 'COUNT', most)[2]
  for i = 1, #page, 2 do
    local clash = join_field(page[i], page[i + 1])
    if clash then
      return clash
    end
    redis.call('HDEL', aside, page[i])
  end
elseif kind == 'zset' then
  local page = redis.call('ZRANGE', aside, 0, most - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    redis.call('ZADD', key, 'NX', page[i + 1], page[i])
    redis.call('ZREM', aside, page[i])
  end
else
  -- A history cannot be put before another one.
  redis.call('UNLINK', aside)
end
return redis.call('EXISTS', aside) == 1 and 'more' or 'ok'
