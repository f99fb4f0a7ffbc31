-- sweep: finds what no event announced. Reads only.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 leased   keyfall:{app:module:biz/0}:leased
-- ARGV  1 overdue ms: how long a job must have been due, 2 skip: how many overdue jobs to
--       pass over, 3 limit: how many ids of each sort at the most
-- Reply {'ok', now µs, overdue, lapsed, next due, next lapse}: ids separated by blanks, the
--       oldest first; and the Unix ms at which the next job that is not yet overdue falls
--       due and the next lease ends, empty if none does.
-- Holds: bounded by limit, whatever `skip` is.

local due_key, leased_key = KEYS[1], KEYS[2]
local overdue_ms, skip, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_us()
local now_ms = math.floor(now / 1000)

local function first_after(key, ms)
  local found = redis.call('ZRANGEBYSCORE', key, '(' .. int(ms), '+inf', 'WITHSCORES', 'LIMIT',
    0, 1)
  return found[2] or ''
end

-- A range by score counts its way to `skip`, so beyond the first page go by rank.
local overdue = {}
if skip == 0 then
  overdue = redis.call('ZRANGEBYSCORE', due_key, '-inf', int(now_ms - overdue_ms), 'LIMIT', 0,
    limit)
else
  local ranked = redis.call('ZRANGE', due_key, skip, skip + limit - 1, 'WITHSCORES')
  for i = 1, #ranked, 2 do
    if tonumber(ranked[i + 1]) <= now_ms - overdue_ms then
      overdue[#overdue + 1] = ranked[i]
    end
  end
end
local lapsed = redis.call('ZRANGEBYSCORE', leased_key, '-inf', int(now_ms), 'LIMIT', 0, limit)
return {'ok', int(now), table.concat(overdue, ' '), table.concat(lapsed, ' '),
  first_after(due_key, now_ms - overdue_ms), first_after(leased_key, now_ms)}
