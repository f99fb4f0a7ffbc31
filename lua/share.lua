-- share: reads the share that a ledger has of a limit over several ledgers, and changes it.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
--       2 due     keyfall:{app:module:biz/0}:due
--       3 leased  keyfall:{app:module:biz/0}:leased
-- ARGV  1 epoch, 2 caller: the number and the name of the look, 3 limit: when it was set, Unix
--       ms, 4 wake channel, 5 subject (app:module:biz/0), 6 units, 7 leases: the new share; both
--       are empty to leave it as it is, 8 owed: the millionths of a start that the added units have
--       used
-- Reply {'ok', now µs, answers, units, leases, bound, running, used, waiting, since, owed};
--       answers, one word:
--       shared       the rest is true from now on: units and leases are the share; bound says of
--                    how many leases the ledger makes use, running how many there are, used how
--                    many units are in use, and waiting how many jobs wait for a share; since is
--                    when the ledger got its share or lost it, Unix ms, and owed the millionths of
--                    a start that were used of the units which this look has removed
--       newer:epoch  a look with this number was faster: nothing was done
--       absent       the ledger has no share of this limit: nothing was done
-- Holds: from then on, a call with an older epoch changes nothing. Works while Redis is full. With
--       groups, waiting is how many jobs were found whose groups let them start, 64 at the most.

local calls_key, due_key, leased_key = KEYS[1], KEYS[2], KEYS[3]
local epoch, by, rule = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)
local answers = {}

local running = redis.call('ZCOUNT', leased_key, '-inf', '(inf')
local due = redis.call('ZCOUNT', due_key, '-inf', int(now_ms))
local of_kind = redis.call('HMGET', calls_key, 'limit', 'paused')
local limit = of_kind[1] and read_limit(of_kind[1])
local share = limit and limit.share and read_share(limit.share)
if not share or share.rule ~= rule then
  answers[1] = 'absent'
elseif share.epoch > epoch or share.epoch == epoch and share.by ~= by then
  answers[1] = 'newer:' .. int(share.epoch)
end
if answers[1] then
  return {'ok', stamp, answers[1], 0, 0, 0, 0, 0, 0, 0, 0}
end
answers[1] = 'shared'
local had, is_raised = has_share(share), false
-- A repeated call answers what it has removed before.
share.owed = share.epoch == epoch and share.owed or 0
share.epoch, share.by = epoch, by
share.bound = math.max(share.of_leases, math.min(share.bound, running))
local used = starts_used(limit, share, now)
if ARGV[6] ~= '' then
  local units, leases = tonumber(ARGV[6]), tonumber(ARGV[7])
  is_raised = units > share.of_units or leases > share.of_leases
  local kept = math.min(used, units)
  share.owed = share.owed + math.ceil((used - kept) * 1e6)
  used = kept
  if units > share.of_units then
    used = math.min(units, used + tonumber(ARGV[8]) / 1e6)
  end
  share.of_units, share.of_leases = units, leases
  share.bound = math.max(leases, math.min(share.bound, running))
end
if has_share(share) ~= had then
  -- By the clock of the look: it compares the ledgers.
  share.since = math.floor(epoch / 1000)
end
write_share(limit, share)
if ARGV[6] ~= '' and share.gap > 0 then
  limit.full = now + math.ceil(used * limit.gap)
end
-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('HDEL', calls_key, '')
redis.call('HSET', calls_key, 'limit', write_limit(limit))

local room, starts = room_for_due(limit, leased_key, now)
local groups = limit.groups and open_groups(limit, due_key, now, int, starts_left)
local startable = {}
if groups and (room == 0 or is_raised) then
  -- The others wait for the limits of their groups, and need no share.
  local news = open_news(groups, open_entries(groups, due_of), room_for_due)
  startable = news.startable(ANNOUNCED)
  due = room == 0 and #startable or 0
end
if is_raised and groups and room > 0 then
  wake(ARGV[4], ARGV[5], startable, nil, now)
elseif is_raised and due > 0 then
  local news = {}
  announce_waiting(news, limit, due_key, leased_key, ARGV[4], ARGV[5], now)
  wake(ARGV[4], ARGV[5], news, nil, now)
end
-- Jobs that nobody takes although they may start need no share.
local waiting = (room == 0 or running > 0 or used > 0) and math.max(0, due - room) or 0
if starts == 0 then
  waiting = waiting + redis.call('ZCOUNT', leased_key, '-inf', int(now_ms))
end
if is_paused(of_kind[2]) or is_on_hold(limit, now) then
  waiting = 0
end
return {'ok', stamp, answers[1], int(share.of_units), int(share.of_leases),
  int(share.bound), running, int(math.ceil(used)), int(waiting), int(share.since), int(share.owed)}
