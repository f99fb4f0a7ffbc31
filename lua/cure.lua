-- cure: replaces or deletes a field of a hash, if it has the expected value.
--
-- KEYS  1 calls  keyfall:{app:module:biz/0}:calls
--       or any other hash of ours
-- ARGV  1 name of the field, 2 found: the expected value, empty for none, 3 value that it gets,
--       empty to delete the field
-- Reply {'ok', now µs}
-- Holds: may be repeated, and be late: another value stays.

local key, field, found, value = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local _, stamp = now_us()
if (redis.call('HGET', key, field) or '') == found then
  if value == '' then
    redis.call('HDEL', key, field)
  else
    redis.call('HSET', key, field, value)
  end
end
return {'ok', stamp}
