-- admit: announces due jobs that waited for the limit of their ledger, as many as may start now.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 leased   keyfall:{app:module:biz/0}:leased
--       3 calls    keyfall:{app:module:biz/0}:calls
-- ARGV  1 wake channel, 2 subject (app:module:biz/0); the channel is empty to announce nothing
-- Reply {'ok', now µs, limit, room, leases, waiting, next}; limit is the field `limit` of `calls`,
--       empty without a limit; room is how many due jobs may start now, leases how many run, and
--       waiting how many are due, all 0 without a limit; next is when to ask again, Unix µs: one
--       more job may start then; 0 if the ends of runs announce the other jobs. If the kind has
--       groups, room is how many jobs were found that may start now, 64 at the most
-- Holds: writes nothing. Announces 64 jobs at the most, the oldest. If several ledgers share the
--       limit and none may start, says that jobs wait.

-- How often to ask whether lapsed leases were taken over.
local TAKEOVER_US = 100000

-- How long the jobs that were announced get to start before others of their groups are.
local MORE_US = 10000

local due_key, leased_key, calls_key = KEYS[1], KEYS[2], KEYS[3]
local now, stamp = now_us()
local field = redis.call('HGET', calls_key, 'limit')
local limit = field and read_limit(field)
local leases = redis.call('ZCOUNT', leased_key, '-inf', '(inf')
local waiting = redis.call('ZCOUNT', due_key, '-inf', int(math.floor(now / 1000)))
local groups = limit and limit.groups and open_groups(limit, due_key, now, int, starts_left)
if groups then
  waiting = waiting + aside_count(due_key)
end
if not limit or limit.gap + limit.most == 0 and not groups then
  return {'ok', stamp, '', 0, 0, 0, 0}
end
local room, starts = room_for_due(limit, leased_key, now)
if groups then
  local news = open_news(groups, open_entries(groups, due_of), room_for_due)
  local ids = room > 0 and news.startable(math.min(room, ANNOUNCED)) or {}
  if ARGV[1] ~= '' and #ids > 0 then
    wake(ARGV[1], ARGV[2], ids, nil, now)
  end
  local next_one = news.next_alarm()
  if waiting > 0 and room == 0 then
    local kind_next = next_start(limit, now)
    if kind_next > 0 then
      next_one = kind_next
    elseif starts == 0 then
      next_one = now + TAKEOVER_US
    end
  elseif limit.gap > 0 and waiting > #ids and starts <= #ids then
    use_starts(limit, now, #ids)
    next_one = next_start(limit, now)
  elseif waiting > #ids and room > #ids and news.is_cut then
    next_one = now + MORE_US
  end
  return {'ok', stamp, field, #ids, leases, waiting, int(next_one)}
end
if ARGV[1] ~= '' and waiting > 0 and (room > 0 or limit.share) then
  -- Without room for any, it says that they wait for a share, after a hold for example.
  local news = {}
  announce_waiting(news, limit, due_key, leased_key, ARGV[1], ARGV[2], now)
  wake(ARGV[1], ARGV[2], news, nil, now)
end
room = math.min(room, waiting)
local starting = math.min(room, ANNOUNCED)
local next_one = 0
-- If leases are all that is missing, their ends announce more.
if waiting > starting and starts <= starting and limit.burst > 0 then
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
