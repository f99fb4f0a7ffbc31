-- upcoming: how many pending jobs fall due in each of several spans of time. Reads only.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
-- ARGV  1 now, 2 from: the beginning of the first span, both Unix ms, 3 step: the length of each
--       span, ms, 4 count: the number of spans
-- Reply {'ok', now µs, pending, overdue, earlier, number, number, …}; `overdue` is the number of
--       jobs that are due by `now`, `earlier` the number of the others that fall due before the
--       first span; a span has its beginning and lacks its end. Overdue jobs are in no span. The
--       last spans are left out if no job is due in them, or after them
-- Holds: all numbers are of one instant. Bounded by count; each number costs the logarithm of the
--       number of pending jobs.

local due_key = KEYS[1]
local now_ms, bound = tonumber(ARGV[1]), tonumber(ARGV[2])
local step, count = tonumber(ARGV[3]), tonumber(ARGV[4])
local _, stamp = now_us()
local pending = members(due_key)
local overdue = redis.call('ZCOUNT', due_key, '-inf', int(now_ms))
-- Jobs that wait for the turns of their groups are due.
local aside = aside_count(due_key)
local reply, before = {'ok', stamp, pending, overdue + aside}, overdue
for i = 0, count do
  local sooner = redis.call('ZCOUNT', due_key, '-inf', '(' .. int(bound + i * step))
  sooner = math.max(sooner, overdue)
  reply[#reply + 1] = sooner - before
  before = sooner
  if before + aside == pending then
    break
  end
end
return reply
