-- aside: moves a key out of the way that holds something of another type than it should.
--
-- KEYS  1 calls  keyfall:{app:module:biz/0}:calls
--       or any other key of ours
-- ARGV  1 type: what it should hold, 2 name of ours, in its slot: where it is kept from now on
-- Reply {'ok', now µs, type}: what it held
-- Holds: leaves alone what is as it should be, or is not there. Nothing is overwritten.

local _, stamp = now_us()
local found = redis.call('TYPE', KEYS[1]).ok
if found ~= ARGV[1] and found ~= 'none' then
  redis.call('RENAMENX', KEYS[1], ARGV[2])
end
return {'ok', stamp, found}
