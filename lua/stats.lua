-- stats: how many jobs a ledger holds in each state, and its counters. Reads only.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 leased   keyfall:{app:module:biz/0}:leased
--       3 next     keyfall:{app:module:biz/0}:next
--       4 dead     keyfall:{app:module:biz/0}:dead
--       5 stats    keyfall:{app:module:biz/0}:stats
--       6 calls    keyfall:{app:module:biz/0}:calls
--       7 shadow   keyfall:{app:module:biz/0}:shadow
--       8 lease    keyfall:{app:module:biz/0}:lease
-- ARGV  none
-- Reply {'ok', now µs, pending, overdue, minute, hour, day, oldest, leased, successors, dead,
--       records, leases, held, name, value, name, value …}, the same with 'paused' instead of 'ok'
--       if the kind is paused; minute, hour and day are the numbers of jobs that fall due within
--       that time, without the overdue ones; oldest is the first due time, '' if nothing is
--       pending; held is the number of overdue jobs if the limit of the kind lets none of them
--       start now, else 0, and of the jobs that wait for the turns of their groups; the names are
--       the fields of `stats`, such as accepted, done, cancelled, replaced, buried, requeued,
--       deleted, trimmed, failed, again, snoozed, returned, lapsed, moved_in, moved_out,
--       letters_in, letters_out, skipped, unrun
-- Holds: all numbers are of one instant, so they balance.

local due_key, leased_key, next_key = KEYS[1], KEYS[2], KEYS[3]
local dead_key, stats_key, calls_key = KEYS[4], KEYS[5], KEYS[6]
local shadow_key, lease_key = KEYS[7], KEYS[8]
local now, stamp = now_us()
local of_kind = redis.call('HMGET', calls_key, 'paused', 'limit')
local paused, limit = is_paused(of_kind[1]), of_kind[2] and read_limit(of_kind[2])
local now_ms = math.floor(now / 1000)

local function due_within(seconds)
  return redis.call('ZCOUNT', due_key, '(' .. int(now_ms), int(now_ms + 1000 * seconds))
end

local overdue = redis.call('ZCOUNT', due_key, '-inf', int(now_ms))
local is_held = limit and room_for_due(limit, leased_key, now) == 0
local held = is_held and overdue or 0
local oldest = redis.call('ZRANGEBYSCORE', due_key, '-inf', '(inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
if limit and limit.groups then
  local aside = aside_count(due_key)
  local first = redis.call('ZRANGEBYSCORE', due_key, int(ASIDE), '(inf', 'WITHSCORES', 'LIMIT', 0,
    1)[2]
  overdue, held = overdue + aside, held + aside
  if first and due_of(first) < due_of(oldest) then
    oldest = int(due_of(first))
  end
end
local reply = {paused and 'paused' or 'ok', stamp, members(due_key), overdue,
  due_within(60), due_within(3600), due_within(86400),
  oldest and due_text(oldest) or '',
  members(leased_key), fields(next_key), members(dead_key),
  fields(shadow_key), fields(lease_key), held}
for _, field in ipairs(contents(stats_key)) do
  reply[#reply + 1] = field
end
return reply
