-- archive: sets whether the ends of jobs are recorded for an archive, and how.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
--       2 lanes   keyfall:{app:module:biz/0}:lanes
-- ARGV  1 terms: as in `lib/archive.lua`; `off` and the time for none, 2 set: when they were set,
--       Unix ms
-- Reply {'ok', now µs}
-- Holds: the newest terms hold, so it may be repeated, and be late. Works while Redis is full.
--       Records that wait stay.

local calls_key, lanes_key = KEYS[1], KEYS[2]
local _, stamp = now_us()

local present = redis.call('HGET', calls_key, 'archive') or ''
local set = string.match(present, '^%d+ %d+ %d+ %d+ (%d+)') or string.match(present, '^off (%d+)')
-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('HDEL', calls_key, '')
if tonumber(set or 0) <= tonumber(ARGV[2]) then
  redis.call('HSET', calls_key, 'archive', ARGV[1])
  keep_for_good(calls_key, lanes_key)
end
return {'ok', stamp}
