-- mend: one step of moving a key of a ledger from a node that does not serve its slot to the node
-- that does, where this script runs. The copy is kept aside, in the same slot, until it is complete
-- and the original is deleted; only then it is joined with the key that is here. Each step may be
-- repeated.
--
-- KEYS  1 lock     keyfall:{app:module:biz/0}:mending
--       2 aside    keyfall:{app:module:biz/0}:mending:copying:shadow, …:copied:…, …:moved:…
--       3 key      its new name: the next name aside, or keyfall:{app:module:biz/0}:shadow
-- ARGV  1 token of the caller, 2 step: begin | put | rename | join, then for `put` a command and
--       its arguments behind the key; for `join` the part, the most fields or members to join, and
--       `replace` if the data aside are newer than the data from before the ledger was torn
-- Reply one word:
--       ok           done
--       more         there are more fields or members to join
--       busy         another caller mends this ledger, or did so a moment ago
--       clash name   both keys have a dead letter of this name, and the two differ; or the two keys
--                    have different types
--       clash name   both have a dead letter of this name, and they differ; or keys of two types
-- Rules: with `replace`, the copy takes the place of a key that was here before, which shows in its
--       placeholder. Otherwise fields and members that exist only aside are added, and of those
--       that exist in both the value here stays, because it is newer. Exceptions: counters are
--       added up (`stats`), the larger `fence` and `turn` hold (`calls`), and a dead letter is
--       never given up (`grave`).

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
-- From here on: the steps `rename` and `join`.
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

-- The numbers of the letters of one id, from both keys, in order.
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
    -- A value that is not a number counts as 0.
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
  -- Entries cannot be inserted into a stream before others, so the history aside is dropped.
  redis.call('UNLINK', aside)
end
return redis.call('EXISTS', aside) == 1 and 'more' or 'ok'
