-- settle: ends leases. The job is done or skipped, goes back to due, or is buried; a job that was
-- scheduled while it ran takes its place, or the next occurrence of a recurring job.
--
-- KEYS  1 due       keyfall:{app:module:biz/0}:due
--       2 shadow    keyfall:{app:module:biz/0}:shadow
--       3 leased    keyfall:{app:module:biz/0}:leased
--       4 lease     keyfall:{app:module:biz/0}:lease
--       5 next      keyfall:{app:module:biz/0}:next
--       6 dead      keyfall:{app:module:biz/0}:dead
--       7 grave     keyfall:{app:module:biz/0}:grave
--       8 stats     keyfall:{app:module:biz/0}:stats
--       9 calls     keyfall:{app:module:biz/0}:calls
--      10 lanes     keyfall:{app:module:biz/0}:lanes
--      11 history   keyfall:{app:module:biz/0}:history
--      12… trigger  app:module:biz:id, one for each item; none where triggers live elsewhere
-- ARGV  1 lane, 2 number, 3 who, 4 wake channel, 5 subject (app:module:biz/0), 6 marker,
--       7 most dead letters, 8 most ms that a dead letter is kept,
--       then for each group of items with the same end: token, verb (done | skip | later | bury),
--       when ('+ms' or '@ms', for later), header (for later and bury; empty keeps the old one),
--       step (for later: failed | again | snoozed | returned), note (for the history), next ('@ms',
--       when the next occurrence of a recurring job is due; `-` if none follows; empty if the
--       caller does not know of any), the header of the next occurrence, number of items, and their
--       ids
-- Reply {'ok', now µs, answers, trimmed} or {'late', now µs}; trimmed is the number of old dead
--       letters that the limits removed. If KEYS has no triggers, a list follows: for each
--       successor or occurrence that is pending now the index of its item, from 0, and its due
--       time, Unix ms. The answers, separated by blanks:
--       done            gone for good
--       skipped         gone for good without a run, because it was too late
--       later:due       pending again, due at Unix ms
--       buried:number   a dead letter with this number
--       replaced        not retried: its successor, or the next occurrence, took its place; a
--                       failed attempt is still counted and enters the history
--       recurs          the job recurs, and the call does not say which occurrence follows: nothing
--                       was done
--       cancelled       not retried, nor a dead letter: it was cancelled while it ran
--       gone            there is no lease: settled before, or the ledger was lost
--       foreign         another token holds it: nothing was done
-- Holds: works while Redis is full. A lapsed lease still counts if no other claim has the job.

local FIXED, HEAD, WIDTH = 11, 8, 9
local due_key, shadow_key, leased_key, lease_key, next_key =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local dead_key, grave_key, stats_key, calls_key, lanes_key, history_key =
  KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local lane, number, marker = ARGV[1], tonumber(ARGV[2]), ARGV[6]
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)

local past, known, history, _, limited, archived, changes =
  past_reply(calls_key, lane, number, stamp)
if past then
  past[4] = '0'
  return past
end

local limits = limited and open_limits()
local limit = limits and limits.read_limit(limited)
local groups = limit and limit.groups
  and limits.open_groups(limit, due_key, now, int, limits.starts_left)
local archiving = archived and open_archiving()
local archive = archiving and archiving.open_archive(archived, calls_key, stamp, ARGV[3])

-- The `nil`s make room for four items: a list that grows is copied.
local ids, terms, written, unwritten = {nil, nil, nil, nil}, {nil, nil, nil, nil}, {}, {}
local at, size, words = HEAD, 0, #ARGV
while at < words do
  local alike = {
    token = ARGV[at + 1],
    verb = ARGV[at + 2],
    when = ARGV[at + 3],
    header = ARGV[at + 4] ~= '' and ARGV[at + 4] or nil,
    step = ARGV[at + 5],
    note = ARGV[at + 6],
    next = ARGV[at + 7],
    next_header = ARGV[at + 8],
  }
  local first = at + WIDTH + 1
  at = at + WIDTH + tonumber(ARGV[at + WIDTH])
  alike.is_followed = #alike.next > 1
  local is_written = alike.verb ~= 'done' or alike.is_followed
  for i = first, at do
    size = size + 1
    ids[size], terms[size] = ARGV[i], alike
    if is_written then
      written[#written + 1] = ARGV[i]
    elseif archive then
      unwritten[#unwritten + 1] = ARGV[i]
    end
  end
end
local leases = redis.call('HMGET', lease_key, unpack(ids))
local successors = next_of(next_key, ids, leases)
-- Most jobs are done, and nothing follows them.
local again = (#written > 0 or next(successors)) and open_again()
local records = {}
if #written > 0 then
  for i, record in ipairs(redis.call('HMGET', shadow_key, unpack(written))) do
    records[written[i]] = record or ''
  end
  redis.call('ZCARD', dead_key)
  redis.call('HLEN', grave_key)
end
-- The archive gets a part of each; those behind the first megabytes are read one at a time.
for i, record in ipairs(read_records(shadow_key, unwritten, REPLY_BYTES)) do
  records[unwritten[i]] = record
end

local answers, ended, erased =
  {nil, nil, nil, nil}, {nil, nil, nil, nil}, {nil, nil, nil, nil}
local leases_ended = {}
local counts, done = {}, 0
local promoted, promoted_at, shadows, scores, buried = {}, {}, {}, {}, {}
local armed, armed_for = {}, {}
local news, occurrences = {}, {}
local settled = {}
local story = noting(new_story(history), changes, calls_key)
local ends, erasures = 0, 0

-- Whether the call holds this lease. Neighbours mostly have the same lease and token.
local asked_lease, asked_token, is_held
local function is_mine(lease, token)
  if lease ~= asked_lease or token ~= asked_token then
    asked_lease, asked_token, is_held = lease, token, holds(lease, token)
  end
  return is_held
end

-- The length of a run, from its claim. The jobs of one claim share their fencing value.
local function run_ms(lease)
  local fence = fence_of(lease)
  return fence > 0 and int(math.max(0, math.floor((now - fence) / 1000))) or '-'
end

-- Neighbours of one claim are mostly done together: history and archive are told of them together.
local done_group, done_from
local function tell_done(i)
  if done_group then
    if archive then
      archiving.archive_done(archive, ids, done_from, i - 1, records, shadow_key, leases)
    end
    tell_all(story, 'done', '', ids, done_from, i - 1, '-', run_ms(leases[done_from]))
  end
end

local function tell_archive(what, i, header, letter)
  if archive then
    local id = ids[i]
    archiving.archive_end(archive, what, id, records[id] or redis.call('HGET', shadow_key, id),
      leases[i], nil, header, letter)
  end
end

local function pending(i, id, due, record)
  shadows[#shadows + 1] = id
  shadows[#shadows + 1] = record
  scores[#scores + 1] = int(due)
  scores[#scores + 1] = id
  armed[i], armed_for[i] = int(due), record
  again.note(news, id, due, now)
end

for i = 1, size do
  local id, lease, alike = ids[i], leases[i], terms[i]
  local done_here
  if not lease or (settled[id] and is_mine(lease, alike.token)) then
    answers[i] = 'gone'
  elseif not is_mine(lease, alike.token) then
    answers[i] = 'foreign'
  elseif alike.next == '' and alike.verb ~= 'later' and not successors[i]
    and is_recurring(lease) then
    answers[i] = 'recurs'
  else
    settled[id] = true
    ends = ends + 1
    ended[ends] = id
    if groups then
      leases_ended[ends] = lease
    end
    local stays = false
    local is_followed = alike.is_followed and not successors[i] and not is_cancelled(lease)
    if alike.verb == 'done' then
      answers[i] = 'done'
      done, done_here = done + 1, alike
    elseif is_cancelled(lease) then
      answers[i] = 'cancelled'
      tell(story, 'cancelled', '', id, '-', '-')
      count_one(counts, 'cancelled')
      tell_archive('cancelled', i)
    elseif alike.verb == 'skip' then
      answers[i] = 'skipped'
      tell(story, 'skipped', alike.note, id, '-', '-')
      count_one(counts, 'unrun')
      tell_archive('skipped', i)
    elseif alike.verb == 'bury' then
      answers[i] = 'buried:'
      buried[#buried + 1] = {i, id, again.with_step(records[id], 'buried', now, alike.header)}
      count_one(counts, 'buried')
      counts.trimmed = 0
    elseif successors[i] or is_followed then
      answers[i] = 'replaced'
      -- The job is not tried again, but its attempt has failed.
      if alike.step == 'failed' then
        tell(story, 'failed', alike.note, id, '-', run_ms(lease))
        count_one(counts, 'failed')
      end
      tell(story, 'superseded', '', id, '-', '-')
      count_one(counts, 'replaced')
      tell_archive('replaced', i, alike.header)
    else
      -- A job that goes back unchanged stays as overdue as it is.
      local when = alike.when
      local due = string.sub(when, 1, 1) == '@' and tonumber(string.sub(when, 2))
        or again.due_ms(when, now)
      answers[i] = 'later:' .. int(due)
      tell(story, alike.step, alike.note, id, int(due), run_ms(lease))
      pending(i, id, due, again.with_step(records[id], alike.step, now, alike.header))
      count_one(counts, alike.step)
      stays = true
    end
    if successors[i] then
      local due, record = again.split_successor(successors[i])
      promoted[#promoted + 1] = id
      promoted_at[#promoted] = i
      pending(i, id, due, record)
    elseif is_followed then
      local due = again.due_ms(alike.next, now)
      local _, _, payload = again.split_record(records[id])
      count_one(counts, 'accepted')
      occurrences[#occurrences + 1] = i
      pending(i, id, due,
        again.record_opening(again.begun(alike.next_header, now), ms_of(stamp)) .. payload)
    elseif not stays then
      erasures = erasures + 1
      erased[erasures] = id
    end
  end
  if done_here ~= done_group then
    tell_done(i)
    done_group, done_from = done_here, i
  end
end
tell_done(size + 1)

counts.done = at_least_one(done)

local before = #scores > 0 and again.soonest(due_key, stamp)
local letters = #buried > 0 and open_letters()

-- A full Redis lets a script run on if its first write is a removal, even an empty one. This one
-- also shows whether the records are of the right type.
redis.call('HDEL', shadow_key, '')
local values, fault = raise(stats_key, counts)
local before_them = values and letters
  and values.buried - #buried + letters.skipped(stats_key)
for place, letter in ipairs(values and buried or {}) do
  local i, id = unpack(letter)
  local letter_number = int(before_them + place)
  answers[i] = 'buried:' .. letter_number
  tell(story, 'buried', terms[i].note, id, letter_number, run_ms(leases[i]))
  tell_archive('buried', i, terms[i].header, letter_number)
end
fault = fault or archiving and archiving.write_archive(archive, calls_key)
  or error_in(redis.pcall('ZREM', leased_key, '', unpack(ended)))
if fault then
  lower(stats_key, values and counts or {})
  return fault
end
if #ended > 0 then
  redis.call('HDEL', lease_key, unpack(ended))
end
if #erased > 0 then
  redis.call('HDEL', shadow_key, unpack(erased))
end
if #promoted > 0 then
  redis.call('HDEL', next_key, unpack(promoted))
end
if #shadows > 0 then
  redis.call('ZADD', due_key, unpack(scores))
  redis.call('HSET', shadow_key, unpack(shadows))
end
for place, letter in ipairs(buried) do
  local _, id, record = unpack(letter)
  letters.bury(dead_key, grave_key, id, before_them + place, now_ms, record)
end
local follow = {}
for i, id in ipairs(promoted) do
  local place = promoted_at[i]
  tell(story, 'follows', '', id, armed[place], '-')
  follow[#follow + 1], follow[#follow + 2] = int(place - 1), armed[place]
end
for _, i in ipairs(occurrences) do
  tell(story, 'recurs', '', ids[i], armed[i], '-')
  follow[#follow + 1], follow[#follow + 2] = int(i - 1), armed[i]
end
local trimmed = 0
if #buried > 0 then
  trimmed = letters.trim(dead_key, grave_key, tonumber(ARGV[7]), tonumber(ARGV[8]), now_ms,
    #buried)
  redis.call('HINCRBY', stats_key, 'trimmed', trimmed)
end
write_changes(story, calls_key, now)
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply)
if #KEYS > FIXED then
  for i, due in pairs(armed) do
    again.arm(KEYS[FIXED + i], marker, due, now, armed_for[i])
  end
end
if groups and groups.by and #ended > 0 then
  limits.end_leases(groups, news, ended, leases_ended, leased_key,
    {channel = ARGV[4], subject = ARGV[5]})
elseif limit and limit.most > 0 and #ended > 0 then
  limits.announce_waiting(news, limit, due_key, leased_key, ARGV[4], ARGV[5], now)
end
wake(ARGV[4], ARGV[5], news, before, now)
write_story(story, history_key, ARGV[3])
return {'ok', stamp, reply, int(trimmed), #KEYS == FIXED and table.concat(follow, ' ') or nil}
