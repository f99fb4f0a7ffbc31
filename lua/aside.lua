-- aside: moves a key of a wrong type out of the way.
--
-- KEYS  1 calls  keyfall:{app:module:biz/0}:calls
--       or any other key of ours; behind one of a ledger all keys of that
-- ARGV  1 type: what it should hold, 2 name of ours, in its slot: where it is kept from now on
-- Reply {'ok', now µs, type}: what it held
-- Holds: leaves alone a key of the right type, and an absent one. Nothing is overwritten. A ledger
--       that had all its keys still has them, as `found` makes them: it would be taken for torn.

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
