-- ended: how many records of ended jobs wait for an archive, and of which rule.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
-- ARGV  none
-- Reply {'ok', now µs, rule, first ended, waiting, bytes, first died, waiting, bytes, dropped}:
--       the rule as in `lib/archive.lua`, empty without one; of each list the number of its first
--       record, how many records wait, and their bytes; and how many records were dropped
-- Holds: only reads. The records are read by plain commands: to pass them on, a script would make a
--       text of each.

local start = string.sub(KEYS[1], 1, -6)
local _, stamp = now_us()

local kept = redis.call('HMGET', KEYS[1], 'archive', 'waiting')
local first, bytes, first_died, bytes_died, dropped =
  string.match(kept[2] or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
return {'ok', stamp, kept[1] or '', first or '0', redis.call('LLEN', start .. 'ended'),
  bytes or '0', first_died or '0', redis.call('LLEN', start .. 'died'), bytes_died or '0',
  dropped or '0'}
