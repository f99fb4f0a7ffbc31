-- layout: writes the layout of a kind, and the fields that all its ledgers share.
--
-- KEYS  1 calls  keyfall:{app:module:biz/0}:calls
--       or the list of kinds
-- ARGV  1 field: `layout` in a ledger, the kind in the list of kinds, 2 layout: `shards epoch` or
--       `shards epoch from`, 3 expected: the layout that is there now, or empty for any older
--       one, then fields and values to set where they are missing
-- Reply {'ok', now µs, layout}: the layout that is stored now
-- Holds: may be repeated, and be late: a newer layout stays. The larger epoch is newer; of two
--       layouts with the same epoch, the one without `from` is newer, whose reshard has ended.
--       Removes the mark `founding` from a ledger.

local key, field, layout, expected = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local now, stamp = now_us()

-- The rank of a layout by its age: a newer layout has a larger rank.
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
  -- A drop in progress now leaves the kind on the list.
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
