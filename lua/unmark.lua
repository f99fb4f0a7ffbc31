-- unmark: removes a mark, and further fields with it, if the mark is still the expected one.
--
-- KEYS  1 kinds  keyfall:kinds, or the calls of a ledger
-- ARGV  1 marked field, 2 mark: the expected value of that field, then further fields to remove
--       with it
-- Reply {'ok', now µs, unmarked}: one; zero if the mark is missing, or is another one
-- Holds: may be repeated, and be late. Works while Redis is full.

local _, stamp = now_us()
local is_ours = redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2]
if is_ours then
  redis.call('HDEL', KEYS[1], ARGV[1], unpack(ARGV, 3))
end
return {'ok', stamp, is_ours and 1 or 0}
