-- reclaim: takes over jobs whose lease has lapsed, as another attempt. A job that was
-- cancelled or superseded meanwhile is not run again.
--
-- KEYS  1 due       keyfall:{app:module:biz/0}:due
--       2 shadow    keyfall:{app:module:biz/0}:shadow
--       3 leased    keyfall:{app:module:biz/0}:leased
--       4 lease     keyfall:{app:module:biz/0}:lease
--       5 next      keyfall:{app:module:biz/0}:next
--       6 stats     keyfall:{app:module:biz/0}:stats
--       7 calls     keyfall:{app:module:biz/0}:calls
--       8 lanes     keyfall:{app:module:biz/0}:lanes
--       9 history   keyfall:{app:module:biz/0}:history
--      10… trigger  app:module:biz:id, one for each item; none where triggers live elsewhere
-- ARGV  1 lane, 2 number, 3 who, 4 lease ms, 5 wake channel, 6 subject (app:module:biz/0),
--       7 marker, then for each item: id
-- Reply {'ok', now µs, misses, leases, id, record, …}, the same with 'paused' instead of 'ok'
--       and no jobs if the kind is paused, or {'late', now µs}; leases as in the reply of claim;
--       misses, one for each item, separated by blanks:
--       claimed    the job is in this reply
--       paused     its lease has lapsed, but its kind is paused
--       held       its lease has lapsed, but it waits for the rate of its kind or group
--       leased     its lease has not lapsed, or was renewed; or the reply was full before it
--       replaced   its successor took its place in due
--       cancelled  it was cancelled while it ran, and is gone
--       absent     it is not leased
-- Holds: as claim. The record is not written: `claims` in the lease counts the attempts.

local FIXED, HEAD = 9, 7
local due_key, shadow_key, leased_key, lease_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local next_key, stats_key, calls_key, lanes_key, history_key =
  KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local lane, number, marker = ARGV[1], tonumber(ARGV[2]), ARGV[7]
local token = lane .. '-' .. ARGV[2]
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)
local deadline = int(math.ceil(now / 1000) + tonumber(ARGV[4]))

local seen, remembered, known, last_fence, since, history, _, _, limited, archived, changes =
  recall(calls_key, lane, number)
if seen == 'late' then
  return {'late', stamp}
elseif seen == 'again' then
  return hand_out_again(shadow_key, leased_key, lease_key, stamp, token, remembered, deadline)
end

local ids = {}
for i = 1, #ARGV - HEAD do
  ids[i] = ARGV[HEAD + i]
end
local lapses = redis.call('ZMSCORE', leased_key, unpack(ids))
local held_by = redis.call('HMGET', lease_key, unpack(ids))
local successors = next_of(next_key, ids, held_by)
local before = soonest(due_key, stamp)
local archive = archived and open_archive(archived, calls_key, stamp, ARGV[3])

local paused = is_paused(since)
local limit = limited and read_limit(limited)
local starts = limit and starts_left(limit, now) or math.huge
local groups = limit and limit.groups and open_groups(limit, due_key, now, int, starts_left)
groups = groups and groups.by and groups or nil
local group_of, rates, started, entries = {}, {}, {}, nil
if groups then
  entries = open_entries(groups, due_of, groups_of)
  local names = {}
  for i, id in ipairs(ids) do
    -- The lease of an older version has no group.
    names[i] = groups.group_in(held_by[i] or '')
      or groups_of(groups, {id}, {redis.call('HGET', shadow_key, id) or ''})[1]
    group_of[id], started[names[i]] = names[i], 0
  end
  rates = entries.rates_of(names)
end
local fence = math.max(now, last_fence + 1)
local misses, done = {}, {}
local taken, place, carried = {}, {}, {}
local gone, leases_gone, forgotten, promoted, shadows, scores = {}, {}, {}, {}, {}, {}
local armed, armed_for = {}, {}
local is_held, asking = false, {}
local counts, news = {}, {}
local story = noting(new_story(history), changes, calls_key)
for i, id in ipairs(ids) do
  local lapse = tonumber(lapses[i] or nil)
  if done[id] then
    misses[i] = done[id]
  elseif not lapse then
    misses[i] = 'absent'
  elseif lapse > now_ms then
    misses[i] = 'leased'
  else
    local _, claims, _, due, flag = split_lease(held_by[i] or '')
    if flag == 'cancelled' or successors[i] then
      misses[i] = flag == 'cancelled' and 'cancelled' or 'replaced'
      count_one(counts, misses[i])
      gone[#gone + 1], leases_gone[#gone + 1] = id, held_by[i]
      if archive then
        archive_end(archive, misses[i], id, redis.call('HGET', shadow_key, id),
          held_by[i] or '')
      end
      tell(story, flag == 'cancelled' and flag or 'superseded', '', id, '-', '-')
      if successors[i] then
        local next_due, record = split_successor(successors[i])
        promoted[#promoted + 1] = id
        shadows[#shadows + 1] = id
        shadows[#shadows + 1] = record
        scores[#scores + 1] = int(next_due)
        scores[#scores + 1] = id
        armed[i], armed_for[i] = int(next_due), record
        note(news, id, next_due, now)
        tell(story, 'follows', '', id, int(next_due), '-')
      else
        forgotten[#forgotten + 1] = id
      end
    elseif paused then
      misses[i] = 'paused'
    elseif #taken >= starts or groups and (groups.census ~= '-'
      or started[group_of[id]] >= starts_left(rates[group_of[id]], now)) then
      misses[i] = 'held'
      is_held = true
      if groups and rates[group_of[id]].burst < groups.burst then
        asking[#asking + 1] = group_of[id]
      end
    else
      misses[i] = 'claimed'
      taken[#taken + 1] = id
      if groups then
        started[group_of[id]] = started[group_of[id]] + 1
      end
      place[#taken] = i
      -- A lease that does not parse knows no due time.
      carried[#taken] = {claims = claims + 1, due = due > 0 and due or lapse}
    end
  end
  done[id] = misses[i]
end
local records = read_records(shadow_key, taken, REPLY_BYTES)
for i = #taken, #records + 1, -1 do
  misses[place[i]] = 'leased'
  if groups then
    started[group_of[taken[i]]] = started[group_of[taken[i]]] - 1
  end
  taken[i] = nil
end
local leases, held, deadlines = {}, {}, {}
for i, id in ipairs(taken) do
  local its_token = groups and token .. '@' .. group_of[id] or token
  leases[i] = new_lease(its_token, carried[i].claims, int(fence), int(carried[i].due),
    recurs(records[i]) and 'recurs' or '-')
  held[#held + 1] = id
  held[#held + 1] = leases[i]
  tell(story, 'lapsed', '', id, int(carried[i].due), int(carried[i].claims))
  deadlines[#deadlines + 1] = deadline
  deadlines[#deadlines + 1] = id
end
local reply = hand_out(stamp, table.concat(misses, ' '), taken, leases, records)
reply[1] = paused and 'paused' or 'ok'

-- A full Redis lets a script run on if its first write is a removal, even an empty one. This one
-- also shows whether the records are of the right type.
redis.call('HDEL', shadow_key, '')
for _ = 1, #taken do
  count_one(counts, 'lapsed')
end
local _, fault = raise(stats_key, counts)
if fault then
  return fault
end
fault = write_archive(archive, calls_key)
if fault then
  lower(stats_key, counts)
  return fault
end
if #gone > 0 then
  redis.call('ZREM', leased_key, unpack(gone))
  redis.call('HDEL', lease_key, unpack(gone))
end
if #forgotten > 0 then
  redis.call('HDEL', shadow_key, unpack(forgotten))
end
if #promoted > 0 then
  redis.call('ZADD', due_key, unpack(scores))
  redis.call('HSET', shadow_key, unpack(shadows))
  redis.call('HDEL', next_key, unpack(promoted))
end
if #taken > 0 then
  redis.call('ZADD', leased_key, unpack(deadlines))
  redis.call('HSET', lease_key, unpack(held))
end
write_changes(story, calls_key, now)
local last = int(#taken > 0 and fence or fence - 1)
if groups then
  local names, count_of = {}, {}
  for i, id in ipairs(taken) do
    names[i] = group_of[id]
    count_of[names[i]] = (count_of[names[i]] or 0) + 1
  end
  entries.write_cut(rates)
  write_starts(groups, taken, names, scores_of(groups, rates, count_of))
  -- No claim may come that counts them, if nothing falls due.
  for _ = 1, 4 do
    if groups.census ~= '-' then
      entries.count_leases(shadow_key, lease_key)
    end
  end
  limit.groups = groups.text()
end
if limit and (limit.gap > 0 or groups) then
  use_starts(limit, now, #taken)
  remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, table.concat(taken, ' '), 'fence',
    last, 'limit', groups and write_limit(limit) or write_full(limit))
else
  remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, table.concat(taken, ' '), 'fence',
    last)
end
if groups then
  end_leases(groups, news, gone, leases_gone, leased_key, {channel = ARGV[5], subject = ARGV[6]})
  if limit.share and is_held then
    entries.ask_for(asking)
    tell_held(ARGV[5], ARGV[6], limit, now)
  end
elseif limit then
  if limit.share and is_held then
    tell_held(ARGV[5], ARGV[6], limit, now)
  end
  announce_waiting(news, limit, due_key, leased_key, ARGV[5], ARGV[6], now)
end
if #KEYS > FIXED then
  for i, due in pairs(armed) do
    arm(KEYS[FIXED + i], marker, due, now, armed_for[i])
  end
end
wake(ARGV[5], ARGV[6], news, before, now)
write_story(story, history_key, ARGV[3])
return reply
