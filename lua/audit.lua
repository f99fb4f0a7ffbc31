-- audit: finds the flaws of the given names and, on request, mends them. No data disappears, and
-- the books balance at least as well as before.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 shadow   keyfall:{app:module:biz/0}:shadow
--       3 leased   keyfall:{app:module:biz/0}:leased
--       4 lease    keyfall:{app:module:biz/0}:lease
--       5 next     keyfall:{app:module:biz/0}:next
--       6 dead     keyfall:{app:module:biz/0}:dead
--       7 grave    keyfall:{app:module:biz/0}:grave
--       8 stats    keyfall:{app:module:biz/0}:stats
--       9 calls    keyfall:{app:module:biz/0}:calls
--      10 history  keyfall:{app:module:biz/0}:history
-- ARGV  1 repair: one to mend, zero to look, 2 lease ms: the length of a mended lease,
--       3 wake channel, 4 subject (app:module:biz/0), 5 who, then for each item: name (an id, or
--       the `id:number` of a dead letter), header (of the dead letter that it becomes, or of the
--       letter without a record), judged (the caller's judgement of name and record; see
--       lua/lib/faults.lua), id (of the letter that keeps the data of an impossible name)
-- Reply {'ok', now µs, answers}; answers, separated by blanks, each with its repair behind the
--       colon. `!` behind an answer: a requested repair has left the name as it was, because a
--       counter that it needs is not a number, or because a worker will end the job:
--       sound       nothing is wrong
--       bare        due, without a record: becomes a dead letter
--       stray       a record, of a job neither due nor leased: becomes a dead letter
--       untimely    its due time is not a possible time: becomes a dead letter
--       garbled     its record, or the record of its successor, cannot be read: that job becomes a
--                   dead letter, unless it is leased
--       twice       both due and leased: the due job becomes the successor, or is dropped if there
--                   is one
--       tokenless   it has a deadline and no lease: gets a lease that nobody holds
--       timeless    it has a lease and no possible deadline: gets a deadline
--       blank       lapsed, without a record: becomes a dead letter; its successor becomes pending
--       blind       leased, without a record: left alone
--       headless    the successor of a job that is not leased: becomes pending
--       wordless    a dead letter without a record: gets one
--       undead      the record of a letter that is missing in `dead`: gets its entry back
--       illegible   the record of a dead letter cannot be read: gets another header
--       misfiled    the list of letters under the id names letters that do not exist: loses them
--       unfiled     the id of a dead letter has no list of letters: gets one with this letter
--       alien       no job, or no letter, can have this name: its record becomes a dead letter of
--                   another name
--       void        the same, without a record to keep: the name is deleted
-- Holds: looks and mends in one step, so each mended name was broken. Takes no lane: a repeat, or a
--       late original, finds the name sound. Works while Redis is full. A job that comes to light
--       is counted as accepted, unless the counters miss a job already.

local HEAD, WIDTH = 5, 4
local due_key, shadow_key, leased_key, lease_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local next_key, dead_key, grave_key, stats_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local calls_key, history_key = KEYS[9], KEYS[10]
local repair = ARGV[1] == '1'
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)
local lapse_ms = now_ms + tonumber(ARGV[2])

local function counter(name)
  return tonumber(redis.call('HGET', stats_key, name) or 0) or 0
end

local function is_number(name)
  local value = redis.call('HGET', stats_key, name)
  return not value or string.find(value, '^%d+$')
end

-- The numbers of jobs and of letters that the counters know and the ledger lacks; negative if it
-- has more.
local missing = counter('accepted') + counter('requeued') + counter('moved_in')
  - members(due_key) - members(leased_key) - fields(next_key)
  - counter('done') - counter('cancelled') - counter('replaced') - counter('buried')
  - counter('unrun') - counter('moved_out')
local missing_letters = counter('buried') + counter('letters_in') - counter('requeued')
  - counter('deleted') - counter('trimmed') - counter('letters_out') - members(dead_key)
local before = soonest(due_key, stamp)
local story = noting(new_story(redis.call('HGET', calls_key, 'history')),
  redis.call('HGET', calls_key, 'changes'), calls_key)

-- The data stored under a name.
local function stored(job)
  local due = redis.call('ZSCORE', due_key, job.name)
  job.due = due and due_text(due)
  job.deadline = redis.call('ZSCORE', leased_key, job.name)
  job.died = redis.call('ZSCORE', dead_key, job.name)
  job.record = redis.call('HGET', shadow_key, job.name) or ''
  job.successor = redis.call('HGET', next_key, job.name)
  job.letter = redis.call('HGET', grave_key, job.name) or ''
  job.kept = {}
  for number in string.gmatch(job.fault == 'misfiled' and job.letter or '', '%S+') do
    if redis.call('ZSCORE', dead_key, job.name .. ':' .. number) then
      job.kept[#job.kept + 1] = number
    end
  end
  -- The data under a name that no job or letter can have.
  job.records = {}
  local successor = job.successor and select(2, split_successor(job.successor)) or ''
  for _, record in ipairs(job.judged == 'L' and {job.letter} or {job.record, successor}) do
    if record ~= '' then
      job.records[#job.records + 1] = record
    end
  end
end

local function one_if(holds)
  return holds and 1 or 0
end

-- For each flaw, the counters that its repair raises, and the number of jobs that come to light.
-- Such a job also counts as accepted, unless the books miss one.
local plan = {}

function plan.bare(job)
  return {buried = 1}, one_if(not is_counted(job.due))
end

plan.untimely = plan.bare

function plan.stray()
  return {buried = 1}, 1
end

function plan.garbled(job)
  job.is_left = not (job.due and is_unreadable(job.record, job.judged))
    and not is_unreadable(record_of_next(next_key, job.name), job.judged)
  return {buried = 1}, 0
end

function plan.blank()
  return {buried = 1}, 0
end

function plan.timeless(job)
  return {}, one_if(not is_counted(job.deadline))
end

plan.tokenless = plan.timeless

function plan.twice(job)
  return {replaced = one_if(job.successor)}, one_if(not is_counted(job.due))
end

function plan.headless(job)
  return {replaced = one_if(job.due)}, 0
end

function plan.undead()
  local times = one_if(missing_letters <= 0)
  missing_letters = missing_letters - 1
  return {accepted = times, buried = times}, 0
end

-- No call accepts such a name, so its records may be the jobs that the books miss.
function plan.alien(job)
  if job.judged == 'L' then
    return {accepted = 1, buried = 1}, 0
  end
  local letters = #job.records
  local counted = one_if(is_counted(job.due)) + one_if(is_counted(job.deadline))
    + one_if(job.successor)
  local accepted = math.min(letters, math.max(0, letters - counted - missing))
  missing = missing + accepted + counted - letters
  return {accepted = accepted, buried = letters}, 0
end

local function plan_of(job)
  if not plan[job.fault] then
    return {}
  end
  local counts, come = plan[job.fault](job)
  if come > 0 then
    counts.accepted = one_if(missing <= 0)
    missing = missing - 1
  end
  return counts
end

-- Whether all counters can be raised, and letters be numbered.
local function can_count(counts)
  for name, times in pairs(counts) do
    if times > 0 and not (is_number(name) and (name ~= 'buried' or is_number('skipped'))) then
      return false
    end
  end
  return true
end

local answers, faults, done = {}, {}, {}
local counts = {accepted = 0, buried = 0, replaced = 0}
for at = HEAD + 1, #ARGV, WIDTH do
  local name, judged = ARGV[at], ARGV[at + 2]
  answers[#answers + 1] = done[name] or fault_of(KEYS, name, now_ms, judged)
  local fault = answers[#answers]
  if repair and not done[name] and fault ~= 'sound' and fault ~= 'blind' then
    local job = {name = name, fault = fault, header = ARGV[at + 1], judged = judged,
      id = ARGV[at + 3]}
    stored(job)
    local planned = plan_of(job)
    if job.is_left or not can_count(planned) then
      answers[#answers] = fault .. '!'
    else
      faults[#faults + 1] = job
      for counted, times in pairs(planned) do
        counts[counted] = counts[counted] + times
      end
      -- The id of the letter, if the repair makes one of another name.
      local id = job.id ~= '' and job.id or string.match(name, '^[^:]*')
      tell(story, 'repaired', fault, id, '-', '-')
    end
  end
  done[name] = answers[#answers]
end
local reply = {'ok', stamp, table.concat(answers, ' ')}
if #faults == 0 then
  return reply
end

local number = counter('buried') + counter('skipped')
local news = {}
local limit = read_limit(redis.call('HGET', calls_key, 'limit'))
local groups = limit and limit.groups and open_groups(limit, due_key, now, int, starts_left)
local archive =
  open_archive(redis.call('HGET', calls_key, 'archive'), calls_key, stamp, ARGV[5])

local function to_pending(job, due, record)
  redis.call('ZADD', due_key, int(due), job.name)
  redis.call('HSET', shadow_key, job.name, record)
  redis.call('HDEL', next_key, job.name)
  note(news, job.name, due, now)
end

-- Makes an unreadable record readable: the given header, and the part that looks like the payload,
-- or the whole record as the payload.
local function readable(job, record)
  local header, _, payload = split_record(record)
  local kept = string.sub(header, 1, 1) == '{' and payload or record
  return with_step(record_opening(job.header, '') .. kept, 'buried', now)
end

local function to_letter(job, id, record)
  number = number + 1
  bury(dead_key, grave_key, id, number, now_ms, record)
  if archive then
    archive_end(archive, 'buried', id, record, nil, is_time(job.due) and job.due or '0', nil,
      int(number))
  end
end

local function to_dead(job)
  redis.call('HDEL', shadow_key, job.name)
  to_letter(job, job.name, is_unreadable(job.record, job.judged) and readable(job, job.record)
    or with_step(job.record, 'buried', now, job.header))
end

local mend = {}

function mend.bare(job)
  redis.call('ZREM', due_key, job.name)
  to_dead(job)
end

mend.stray = to_dead
mend.untimely = mend.bare

function mend.garbled(job)
  if job.due and is_unreadable(job.record, job.judged) then
    return mend.bare(job)
  end
  redis.call('HDEL', next_key, job.name)
  to_letter(job, job.name, readable(job, select(2, split_successor(job.successor))))
end

function mend.twice(job)
  redis.call('ZREM', due_key, job.name)
  if not job.successor then
    local due = is_time(job.due) and tonumber(job.due) or now_ms
    redis.call('HSET', next_key, job.name, int(due) .. ' ' .. job.record)
  elseif archive then
    archive_end(archive, 'replaced', job.name, job.record, nil, is_time(job.due) and job.due or '0')
  end
end

function mend.tokenless(job)
  local lapse = is_time(job.deadline) and tonumber(job.deadline) or lapse_ms
  redis.call('ZADD', leased_key, int(lapse), job.name)
  redis.call('HSET', lease_key, job.name, new_lease('nobody', 1, '0', int(lapse), '-'))
end

function mend.timeless(job)
  redis.call('ZADD', leased_key, int(lapse_ms), job.name)
end

function mend.blank(job)
  local lease = redis.call('HGET', lease_key, job.name)
  redis.call('ZREM', leased_key, job.name)
  redis.call('HDEL', lease_key, job.name)
  if groups and groups.by then
    end_leases(groups, news, {job.name}, {lease}, leased_key,
      {channel = ARGV[3], subject = ARGV[4]})
  end
  to_dead(job)
  if job.successor then
    to_pending(job, split_successor(job.successor))
  end
end

function mend.headless(job)
  if archive and job.due then
    archive_end(archive, 'replaced', job.name, job.record, nil, is_time(job.due) and job.due or '0')
  end
  to_pending(job, split_successor(job.successor))
end

function mend.wordless(job)
  redis.call('HSET', grave_key, job.name, with_step('', 'buried', now, job.header))
end

function mend.undead(job)
  redis.call('ZADD', dead_key, int(now_ms), job.name)
end

function mend.illegible(job)
  redis.call('HSET', grave_key, job.name, readable(job, job.letter))
end

function mend.misfiled(job)
  if #job.kept > 0 then
    redis.call('HSET', grave_key, job.name, table.concat(job.kept, ' '))
  else
    redis.call('HDEL', grave_key, job.name)
  end
end

function mend.unfiled(job)
  local id, of_letter = string.match(job.name, '^(.+):(%d+)$')
  file(dead_key, grave_key, id, of_letter, whole(job.died), job.letter)
end

function mend.void(job)
  for at = job.judged == 'J' and 1 or 6, job.judged == 'J' and 5 or 7 do
    if job.name ~= PLACEHOLDER then
      redis.call(IS_SET[at] and 'ZREM' or 'HDEL', KEYS[at], job.name)
    elseif IS_SET[at] then
      redis.call('ZADD', KEYS[at], 'XX', 'inf', job.name)
    end
  end
end

function mend.alien(job)
  mend.void(job)
  for _, record in ipairs(job.records) do
    to_letter(job, job.id, readable(job, record))
  end
end

-- A full Redis lets a script run on if its first write is a removal, even an empty one. The
-- counters come next, because only a damaged counter can still fail.
redis.call('ZREM', due_key, '')
for name, times in pairs(counts) do
  if times > 0 then
    redis.call('HINCRBY', stats_key, name, times)
  end
end
for _, job in ipairs(faults) do
  mend[job.fault](job)
end
write_archive(archive, calls_key)
write_changes(story, calls_key, now)
wake(ARGV[3], ARGV[4], news, before, now)
write_story(story, history_key, ARGV[5])
return reply
