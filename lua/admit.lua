-- admit: announces due jobs that waited for the limit of their ledger, as many as may start now.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 leased   keyfall:{app:module:biz/0}:leased
--       3 calls    keyfall:{app:module:biz/0}:calls
-- ARGV  1 wake channel, 2 subject (app:module:biz/0); the channel is empty to announce nothing
-- Reply {'ok', now µs, limit, room, leases, waiting, next}; limit is the field `limit` of `calls`,
--       empty without a limit; room is how many due jobs may start now, leases how many run, and
--       waiting how many are due, all 0 without a limit; next is when to ask again, Unix µs: one
--       more job may start then; 0 if the ends of runs announce the other jobs
-- Holds: writes nothing. Announces 64 jobs at the most, the oldest.

-- How often to ask whether lapsed leases were taken over.
local TAKEOVER_US = 100000

local due_key, leased_key, calls_key = KEYS[1], KEYS[2], KEYS[3]
local now, stamp = now_us()
local field = redis.call('HGET', calls_key, 'limit')
local limit = field and read_limit(field)
local leases = redis.call('ZCOUNT', leased_key, '-inf', '(inf')
local waiting = redis.call('ZCOUNT', due_key, '-inf', int(math.floor(now / 1000)))
if not limit or limit.gap + limit.most == 0 then
  return {'ok', stamp, '', 0, 0, 0, 0}
end
local room, starts = room_for_due(limit, leased_key, now)
if ARGV[1] ~= '' and waiting > 0 and room > 0 then
  local news = {}
  announce_waiting(news, limit, due_key, leased_key, ARGV[1], ARGV[2], now)
  wake(ARGV[1], ARGV[2], news, nil, now)
end
room = math.min(room, waiting)
local starting = math.min(room, ANNOUNCED)
local next_one = 0
-- If leases are all that is missing, their ends announce more.
if waiting > starting and starts <= starting then
  use_starts(limit, now, starting)
  next_one = next_start(limit, now)
  if next_one == 0 then
    -- Lapsed leases keep the starts for their takeover.
    next_one = now + math.max(limit.gap, TAKEOVER_US)
  end
elseif waiting > starting and room > starting then
  next_one = now + 1
end
return {'ok', stamp, field, int(room), leases, waiting, int(next_one)}
