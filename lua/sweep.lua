-- sweep: finds overdue jobs and lapsed leases that no event announced. Reads only.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 leased   keyfall:{app:module:biz/0}:leased
--       3 calls    keyfall:{app:module:biz/0}:calls
-- ARGV  1 overdue ms: how long a job must have been due, 2 limit: how many ids of each sort
--       at the most, 3 skip due, 4 skip lapsed: how many of the oldest to pass over
-- Reply {'ok', now µs, overdue, lapsed, next due, next lapse, held}: ids separated by blanks, the
--       oldest first; and the Unix ms at which the next job that is not yet overdue falls
--       due and the next lease ends, empty if none does. If the kind is paused, 'paused'
--       instead of 'ok', and no ids: nothing can be done about them. No overdue ids either if the
--       limit of the kind lets no due job start now: held is when its rate allows the next start,
--       Unix µs, or 0 if it waits for the end of a run, and ` shared` behind it if several ledgers
--       share the limit; else held is empty. If the kind has
--       groups, the jobs whose turn is next follow the overdue ones, and held is also given if the
--       limits of all groups with due jobs let none start
-- Holds: bounded by limit, whatever `skip` is.

local due_key, leased_key, calls_key = KEYS[1], KEYS[2], KEYS[3]
local overdue_ms, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local skip_due, skip_lapsed = tonumber(ARGV[3]), tonumber(ARGV[4])
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)

-- The scores beyond are those of due jobs; see `lib/waiting.lua`.
local function first_after(key, ms)
  local found = redis.call('ZRANGEBYSCORE', key, '(' .. int(ms), '(4e15', 'WITHSCORES', 'LIMIT',
    0, 1)
  return found[2] or ''
end

-- The ids with a score up to `ms`. A range by score has to count its way to `skip`, so the pages
-- after the first one are ranges by rank.
local function up_to(key, ms, skip)
  if skip == 0 then
    return redis.call('ZRANGEBYSCORE', key, '-inf', int(ms), 'LIMIT', 0, limit)
  end
  local ids = {}
  local ranked = redis.call('ZRANGE', key, skip, skip + limit - 1, 'WITHSCORES')
  for i = 1, #ranked, 2 do
    if tonumber(ranked[i + 1]) <= ms then
      ids[#ids + 1] = ranked[i]
    end
  end
  return ids
end

local of_kind = redis.call('HMGET', calls_key, 'paused', 'limit')
local paused, limited = is_paused(of_kind[1]), of_kind[2] and read_limit(of_kind[2])
local groups = limited and limited.groups and open_groups(limited, due_key, now, int, starts_left)
local overdue = paused and {} or up_to(due_key, now_ms - overdue_ms, skip_due)
local held = ''
local waits = groups and not paused and aside_count(due_key) > 0
if limited and (#overdue > 0 or waits) and room_for_due(limited, leased_key, now) == 0 then
  overdue, held = {}, int(next_start(limited, now)) .. (limited.share and ' shared' or '')
elseif waits and skip_due == 0 and #overdue < limit then
  local news = open_news(groups, open_entries(groups, due_of), room_for_due)
  for _, id in ipairs(news.next_jobs(limit - #overdue)) do
    overdue[#overdue + 1] = id
  end
  held = #overdue == 0 and int(news.next_alarm()) or ''
end
if groups and limited.share and not string.find(held, 'shared', 1, true)
  and redis.call('ZCOUNT', groups.turns_key, int(groups.WANTS), '(inf') > 0 then
  held = (held ~= '' and held or '0') .. ' shared'
end
local lapsed = paused and {} or up_to(leased_key, now_ms, skip_lapsed)
if limited and limited.share and #lapsed > 0 and starts_left(limited, now) == 0 then
  -- Their takeovers wait for a share as well.
  held = int(next_start(limited, now)) .. ' shared'
end
return {paused and 'paused' or 'ok', stamp, table.concat(overdue, ' '), table.concat(lapsed, ' '),
  first_after(due_key, now_ms - overdue_ms), first_after(leased_key, now_ms), held}
