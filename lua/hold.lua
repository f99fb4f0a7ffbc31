-- hold: lets no job of a limited ledger start for a while.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
-- ARGV  1 how long, ms, an hour at the most
-- Reply {'ok', now µs, answers}; answers, one word:
--       held    no job starts before that time is over
--       absent  the ledger has no limit: nothing was done
-- Holds: a shorter hold leaves a longer one as it is, so a repeated call prolongs it only by its
--       lateness. While Redis is full, refused.

local calls_key = KEYS[1]
local now, stamp = now_us()
local limit = read_limit(redis.call('HGET', calls_key, 'limit'))
local answers = {}
if limit and limits_starts(limit) then
  local before = is_on_hold(limit, now) and limit.hold or 0
  limit.hold = math.max(before, now + math.min(tonumber(ARGV[1]) * 1000, HOLD_US))
  redis.call('HSET', calls_key, 'limit', write_limit(limit))
  answers[1] = 'held'
else
  answers[1] = 'absent'
end
return {'ok', stamp, answers[1]}
