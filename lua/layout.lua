-- layout: tells a ledger by which layout its kind goes, and what holds for the kind as a whole.
--
-- KEYS  1 calls  keyfall:{app:module:biz/0}:calls
--       where the field is `layout`; or the list of kinds instead, where it is the kind
-- ARGV  1 field, 2 layout: `shards epoch` or `shards epoch from`, 3 expected: the layout that is
--       to be there, or empty for any that it follows, then fields and values to set if they are
--       not there
-- Reply {'ok', now µs, layout}: the one that is there now
-- Holds: may be repeated, and be late: a newer layout stays, since its epoch is larger, or the same
--       and nothing moves any more. Takes the mark `founding` off a ledger.

local key, field, layout, expected = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local now, stamp = now_us()

-- By epoch; of two with the same the one that is settled is newer.
local function age(text)
  local _, epoch, from = string.match(text, '^(%d+) ?(%d*) ?(%d*)$')
  return (tonumber(epoch) or 0) * 2 + (from == '' and 1 or 0)
end

local there = redis.call('HGET', key, field)
local fits = not there or age(layout) > age(there)
if expected ~= '' then
  fits = fits and (there or '1') == expected
end
if fits then
  -- A kind that was to be taken off the list is not.
  redis.call('HDEL', key, '=' .. field)
  redis.call('HSET', key, field, layout)
  there = layout
end
for i = 4, #ARGV, 2 do
  redis.call('HSETNX', key, ARGV[i], ARGV[i + 1])
end
if field == 'layout' then
  redis.call('HDEL', key, 'founding')
  keep_for_good(key)
end
return {'ok', stamp, there}
