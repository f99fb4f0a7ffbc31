-- claim: leases jobs that are due, and returns their records. One caller gets each job.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 shadow   keyfall:{app:module:biz/0}:shadow
--       3 leased   keyfall:{app:module:biz/0}:leased
--       4 lease    keyfall:{app:module:biz/0}:lease
--       5 calls    keyfall:{app:module:biz/0}:calls
--       6 lanes    keyfall:{app:module:biz/0}:lanes
--       7 history  keyfall:{app:module:biz/0}:history
-- ARGV  1 lane, 2 number, 3 who, 4 lease ms, 5 fill: the most jobs to take beside the named ones,
--       the oldest first, 6 wake channel, 7 subject (app:module:biz/0), 8 order: `oldest` if the
--       caller takes the oldest jobs instead of the named ones, should a limit hold some of them
--       back, else `named`, 9 sources: one letter for each named id, how it was found (e event,
--       p pacer, r reconciler, b backlog), then the named ids
-- Reply {'ok', now µs, misses, leases, id, record, id, record, …}, the same with 'paused' instead
--       of 'ok' and no jobs if the kind is paused, or {'late', now µs}; leases, one line for each
--       job, `=` for the lease before it; misses, one for each named id, separated by blanks:
--       claimed   the job is in this reply
--       early:ms  due in so many ms; 0 if the reply was full before it
--       paused    due, but its kind is paused
--       held      due, but it waits for the limit of its kind, or for the turn of its group
--       leased    it is running
--       absent    no such job
--       A lease is `token claims fence due flag`; the token is `lane-number`, or
--       `lane-number@group` if the kind has groups. A job whose record is missing comes with an
--       empty one, so that the caller can bury it.
-- Holds: a repeated call gets those of its jobs whose leases it still holds, and these leases count
--       from now. The jobs of one call share a fencing value, which is higher than all earlier ones
--       of the ledger. No more jobs are claimed than the limit of the kind allows, and the oldest
--       ones first. If the kind has groups, the groups take turns, and whatever is named, the
--       oldest jobs of the group start, as many as names were given, without the early ones; a
--       caller that takes named jobs only gets as many of these as may start. Works while Redis is
--       full.

-- From this many leases on, a lookup in a listpack costs more than one in a hash table. Redis makes
-- a hash a table if a value is longer than `hash-max-listpack-value`, 64 bytes: zeros before the
-- number of attempts make the lease so long.
local CROWD, ZEROS = 16, '0000000000000000000000000000000000000000000000000000000000000000'

local HEAD = 9
local due_key, shadow_key, leased_key, lease_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local calls_key, lanes_key, history_key = KEYS[5], KEYS[6], KEYS[7]
local lane, number = ARGV[1], tonumber(ARGV[2])
local token = lane .. '-' .. ARGV[2]
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)
local deadline = math.ceil(now / 1000) + tonumber(ARGV[4])

local seen, remembered, known, last_fence, since, history, _, _, limited =
  recall(calls_key, lane, number)
if seen == 'late' then
  return {'late', stamp}
elseif seen == 'again' then
  return hand_out_again(shadow_key, leased_key, lease_key, stamp, token, remembered, deadline)
end

local paused = is_paused(since)
local fence = now > last_fence and stamp or int(last_fence + 1)
local fill = paused and 0 or tonumber(ARGV[5])
local limits = limited and open_limits()
local limit = limits and limits.read_limit(limited)
local room = limit and limits.room_for_due(limit, leased_key, now)
local groups = limit and limit.groups
  and limits.open_groups(limit, due_key, now, int, limits.starts_left)

-- Marks the named jobs that the limit holds back. Returns whether it holds back any job: one that is
-- named, or one that is still due.
local function hold_back(misses, taken)
  local is_taken = {}
  for _, id in ipairs(taken) do
    is_taken[id] = true
  end
  for i = 1, #ARGV - HEAD do
    if misses[i] == 'claimed' and not is_taken[ARGV[HEAD + i]] then
      misses[i] = 'held'
    end
  end
  return redis.call('ZCOUNT', due_key, '-inf', int(now_ms)) > #taken
end

-- A list that grows is copied at one, two and four items; the `nil`s make room for them at once.
-- `named` has the place of each job that is named, among the names.
local misses, taken, dues_taken, named =
  {nil, nil, nil, nil}, {nil, nil, nil, nil}, {nil, nil, nil, nil}, {}
local aside
if #ARGV > HEAD then
  local dues = redis.call('ZMSCORE', due_key, unpack(ARGV, HEAD + 1))
  for i = 1, #dues do
    local id, due = ARGV[HEAD + i], tonumber(dues[i] or nil)
    if due and due >= ASIDE and due < math.huge then
      due = due - ASIDE
      dues[i] = int(due)
      aside = aside or {}
      aside[id] = true
    end
    if due and due <= now_ms and paused then
      misses[i] = 'paused'
    elseif due and due <= now_ms then
      misses[i] = 'claimed'
      if not named[id] then
        named[id] = i
        taken[#taken + 1] = id
        dues_taken[#taken] = dues[i]
      end
    elseif due then
      misses[i] = 'early:' .. int(due - now_ms)
    elseif redis.call('HEXISTS', lease_key, id) == 1 then
      misses[i] = 'leased'
    else
      misses[i] = 'absent'
    end
  end
end

-- With groups, the jobs are picked by turn; those that are named only say how many.
local turns, records, group_at, group_scores
local wanted = #taken + fill
local passed_over = named
local holds_back = room and wanted > room
local only_named = groups and ARGV[8] == 'named' and tonumber(ARGV[5]) == 0
for i = 1, groups and groups.by and not only_named and #misses or 0 do
  -- Each job was announced once. If another one was started in its place, this call is for that.
  wanted = wanted + ((misses[i] == 'leased' or misses[i] == 'absent') and 1 or 0)
end
if groups and groups.by and not paused and wanted > 0 then
  local named_ids, their_dues = taken, dues_taken
  taken, dues_taken, records, group_at, holds_back, fill = {}, {}, {}, {}, true, 0
  local may_take_all = room > 0 and not (only_named or aside or groups.waits)
    and groups.census == '-' and groups.back == '-'
  local ids, dues, read, names, scores
  if may_take_all then
    ids, dues, read, names, scores =
      limits.take_at_once(groups, math.min(wanted, room), shadow_key, leased_key)
  end
  if ids then
    taken, dues_taken, records, group_at, group_scores = ids, dues, read, names, scores
  elseif groups.census ~= '-' then
    redis.call('ZREM', due_key, '')
    limits.open_entries(groups, limits.due_of, limits.groups_of).count_leases(shadow_key, lease_key)
  elseif room > 0 then
    local asked = {}
    for i, id in ipairs(named_ids) do
      asked[i] = {id = id, due = tonumber(their_dues[i]), is_aside = aside and aside[id]}
    end
    turns = limits.open_turns(groups, shadow_key, leased_key, lease_key)
    turns.choose(math.min(wanted, room), asked, only_named, aside)
    for i, one in ipairs(turns.picks) do
      taken[i], dues_taken[i] = one.job.id, int(one.job.due)
      records[i], group_at[i] = one.record, one.queue.group
    end
  end
elseif groups and not groups.by then
  -- The groups were removed, and jobs may still be aside.
  redis.call('ZREM', due_key, '')
  limits.open_entries(groups, limits.due_of).bring_back()
end
if records then
  -- The jobs are chosen.
elseif holds_back and ARGV[8] == 'oldest' then
  taken, passed_over, fill = {}, {}, room
elseif holds_back then
  for i = #taken, room + 1, -1 do
    taken[i] = nil
  end
end
if fill > 0 then
  local oldest = redis.call('ZRANGEBYSCORE', due_key, '-inf', ms_of(stamp), 'WITHSCORES',
    'LIMIT', 0, fill + #taken)
  local count = #taken
  for i = 1, #oldest, 2 do
    if fill > 0 and not passed_over[oldest[i]] then
      fill = fill - 1
      count = count + 1
      taken[count], dues_taken[count] = oldest[i], oldest[i + 1]
    end
  end
end

records = records or read_records(shadow_key, taken, REPLY_BYTES)
for i = #taken, #records + 1, -1 do
  if named[taken[i]] then
    misses[named[taken[i]]] = 'early:0'
  end
  taken[i] = nil
end
if holds_back and not group_at then
  holds_back = hold_back(misses, taken)
elseif group_at then
  holds_back = false
  for _, place in pairs(named) do
    misses[place] = 'held'
  end
  for i = 1, next(named) and #taken or 0 do
    local place = named[taken[i]]
    if place then
      misses[place] = 'claimed'
    end
  end
end

local reply =
  {paused and 'paused' or 'ok', stamp, table.concat(misses, ' '), nil, nil, nil, nil, nil}
local held, deadlines = {nil, nil, nil, nil}, {nil, nil, nil, nil}
local is_crowd = #taken > 0 and #taken + redis.call('ZCARD', leased_key) >= CROWD
local claims = (is_crowd and ZEROS or '') .. '1'
local due, text, lease, ending, source, before
local leases = {nil, nil, nil, nil}
local opening, its_deadline = group_at and token .. '@', int(deadline)
local story, told_from = new_story(history), 1
-- Jobs that are due at the same time share the text of their leases: making it anew for each would
-- cost as much as storing it. The history is told of them together.
for i = 1, #taken do
  local id = taken[i]
  local place = named[id]
  local found = place and string.sub(ARGV[9], place, place) or 'b'
  local is_other = dues_taken[i] ~= due
  if is_other or found ~= source then
    tell_all(story, 'claimed', '', taken, told_from, i - 1, text, source)
    due, source, told_from = dues_taken[i], found, i
    text = whole(due)
  end
  if is_other then
    ending = new_lease('', claims, fence, text, '-')
    lease = token .. ending
  end
  if group_at and (is_other or group_at[i] ~= group_at[i - 1]) then
    lease = opening .. group_at[i] .. ending
  end
  local its_lease = lease
  if recurs(records[i]) then
    local its_token = group_at and opening .. group_at[i] or token
    its_lease = new_lease(its_token, claims, fence, text, 'recurs')
  end
  reply[2 * i + 3], reply[2 * i + 4] = id, records[i]
  leases[i] = its_lease == before and '=' or its_lease
  before = its_lease
  held[2 * i - 1], held[2 * i] = id, its_lease
  deadlines[2 * i - 1], deadlines[2 * i] = its_deadline, id
end
tell_all(story, 'claimed', '', taken, told_from, #taken, text, source)
reply[4] = table.concat(leases, '\n')

-- A full Redis lets a script run on if its first write is a removal, even an empty one. A claim
-- without jobs is remembered too, or its late original could claim jobs for nobody.
if #taken > 0 and (group_scores or #ARGV == HEAD and not group_at) then
  -- All of them are the first ones, and a range takes a third of the time.
  redis.call('ZREMRANGEBYRANK', due_key, 0, #taken - 1)
else
  redis.call('ZREM', due_key, '', unpack(taken))
end
if #taken > 0 then
  -- The types of these keys were not checked, and may be wrong. To try costs nothing if they are
  -- right.
  local fault = error_in(redis.pcall('ZADD', leased_key, unpack(deadlines)))
    or error_in(redis.pcall('HSET', lease_key, unpack(held)))
  if fault then
    redis.pcall('ZREM', leased_key, unpack(taken))
    for i, id in ipairs(taken) do
      redis.call('ZADD', due_key, dues_taken[i], id)
    end
    return fault
  end
end
if turns then
  turns.write()
elseif group_scores then
  limits.write_starts(groups, taken, group_at, group_scores)
end
if groups then
  limit.groups = (groups.by or groups.back ~= '-') and groups.text() or nil
end
local last = #taken > 0 and fence or int(math.max(now - 1, last_fence))
if limit and (limit.gap > 0 or groups) then
  limits.use_starts(limit, now, #taken)
  remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, table.concat(taken, ' '), 'fence',
    last, 'limit', groups and limits.write_limit(limit) or limits.write_full(limit))
else
  remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, table.concat(taken, ' '), 'fence',
    last)
end
local asks = limit and limit.share and groups and (room == 0 or turns and turns.asks)
if groups and not group_scores
    and (#taken < wanted or groups.back ~= '-' or asks or turns and turns.has_alarm) then
  -- The pacer hears when to ask again: now, if this claim has not looked at everything.
  local next_one = limits.next_start(limit, now)
  if groups.census ~= '-' or not groups.by then
    next_one = now
  elseif next_one == 0 and turns then
    next_one = turns.waits and turns.next_look(#taken == room) or nil
  end
  if next_one or asks then
    redis.pcall('PUBLISH', ARGV[6], 'held ' .. ARGV[7] .. ' ' .. int(next_one or 0)
      .. (asks and ' shared' or ''))
  end
elseif holds_back and not groups then
  limits.tell_held(ARGV[6], ARGV[7], limit, now)
end
local others = turns and #taken < room and turns.others() or {}
if #others > 0 then
  redis.pcall('PUBLISH', ARGV[6], 'now ' .. ARGV[7] .. ' ' .. table.concat(others, ' '))
end
write_story(story, history_key, ARGV[3])
return reply
