-- aside: moves a key of a wrong type out of the way.
--
-- KEYS  1 calls  keyfall:{app:module:biz/0}:calls
--       or any other key of ours; behind one of a ledger all keys of that ledger
-- ARGV  1 type: the type that the key should have, 2 name of ours, in the same slot: the new name
--       of the key
-- Reply {'ok', now µs, type}: the type that the key had
-- Holds: leaves alone a key of the right type, and an absent one. Overwrites nothing. If the ledger
--       had all its keys, as on a cluster, the key is created anew, as `found` does: without it the
--       ledger would count as torn.

local _, stamp = now_us()
local found = redis.call('TYPE', KEYS[1]).ok
local had_all = #KEYS > 1 and redis.call('EXISTS', unpack(KEYS, 2)) == #KEYS - 1
if found ~= ARGV[1] and found ~= 'none' then
  local is_moved = redis.call('RENAMENX', KEYS[1], ARGV[2]) == 1
  if is_moved and had_all then
    if ARGV[1] == 'zset' then
      redis.call('ZADD', KEYS[1], 'inf', PLACEHOLDER)
    elseif ARGV[1] == 'hash' then
      redis.call('HSET', KEYS[1], PLACEHOLDER, '0')
    else
      redis.call('XADD', KEYS[1], 'MAXLEN', 0, '0-1', 'what', 'founded')
    end
  end
end
return {'ok', stamp, found}
