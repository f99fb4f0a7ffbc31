-- start: writes the layout of a kind that begins with several shards to its first ledger, if that
-- is new.
--
-- KEYS  1 stats  keyfall:{app:module:biz/0}:stats
--       2 calls  keyfall:{app:module:biz/0}:calls
-- ARGV  1 layout
-- Reply {'ok', now µs, layout}: the layout that the ledger has now, empty for one shard
-- Holds: may be repeated, and be late. A ledger that has a layout, or has ever accepted a job,
--       stays as it is. So the first call decides: this one, or a call that stores a job as in a
--       kind with one shard. The mark `founding` stays until the kind is on the list, its pause
--       rules are known, and `layout` has told this ledger so; until then the kind counts as new.

local _, stamp = now_us()

local accepted = redis.call('HGET', KEYS[1], 'accepted')
local layout = redis.call('HGET', KEYS[2], 'layout')
if not accepted and not layout then
  layout = ARGV[1]
  redis.call('HSET', KEYS[2], 'layout', layout, 'founding', stamp)
  keep_for_good(KEYS[2])
end
return {'ok', stamp, layout or ''}
