-- unmark: takes a mark away, with further fields, if it has not changed since.
--
-- KEYS  1 kinds  keyfall:kinds, or the calls of a ledger
-- ARGV  1 marked field, 2 mark: what was put there, then further fields to remove with it
-- Reply {'ok', now µs, unmarked}: one, or zero if no mark is there, or another one
-- Holds: may be repeated, and be late. Works while Redis is full.

local _, stamp = now_us()
local is_ours = redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2]
if is_ours then
  redis.call('HDEL', KEYS[1], ARGV[1], unpack(ARGV, 3))
end
return {'ok', stamp, is_ours and 1 or 0}
