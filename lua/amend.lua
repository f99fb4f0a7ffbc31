-- amend: gives jobs another header, due time and payload, if they are as the caller has seen them.
--
-- KEYS  1 due       keyfall:{app:module:biz/0}:due
--       2 shadow    keyfall:{app:module:biz/0}:shadow
--       3 lease     keyfall:{app:module:biz/0}:lease
--       4 next      keyfall:{app:module:biz/0}:next
--       5 stats     keyfall:{app:module:biz/0}:stats
--       6 calls     keyfall:{app:module:biz/0}:calls
--       7 lanes     keyfall:{app:module:biz/0}:lanes
--       8 history   keyfall:{app:module:biz/0}:history
--       9… trigger  app:module:biz:id, one for each item; none where triggers live elsewhere
-- ARGV  1 lane, 2 number, 3 who, 4 place, 5 wake channel, 6 subject (app:module:biz/0),
--       7 marker,
--       then for each item: id, what was seen of the job, as in `lib/version.lua`, when ('+ms' or
--       '@ms'), header, payload, and `keep` if the present payload stays, else `set`
-- Reply {'ok', now µs, answers}, {'late', now µs}, or {'stale', now µs, layout} if this ledger has
--       another layout; answers, separated by blanks:
--       moved:due      pending, due at Unix ms
--       successor:due  running: its successor was amended
--       succeeds:due   running: a new job with this header follows when the run has ended
--       changed        the job is not as the caller has seen it: nothing was done
--       absent         no such job, or its run was cancelled
--       elsewhere      the job belongs to another ledger by now: nothing was done
--       …!             no trigger: its name holds a foreign value, or is the adopted key
-- Holds: all items or none. Refused before anything is written while Redis is full.

local FIXED, HEAD, WIDTH = 8, 7, 6
local due_key, shadow_key, lease_key, next_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stats_key, calls_key, lanes_key, history_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local lane, number, place, marker = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[7]
local now, stamp = now_us()

local past, known, history, _, _, _, changes =
  past_reply(calls_key, lane, number, stamp, place)
if past then
  return past
end

local count = (#ARGV - HEAD) / WIDTH
local ids = {}
for i = 1, count do
  ids[i] = ARGV[HEAD + (i - 1) * WIDTH + 1]
end
local dues = redis.call('ZMSCORE', due_key, unpack(ids))
local leases = redis.call('HMGET', lease_key, unpack(ids))
local successors = redis.call('HMGET', next_key, unpack(ids))
local records = redis.call('HMGET', shadow_key, unpack(ids))
local before = soonest(due_key, stamp)

local state = {}
for i, id in ipairs(ids) do
  local word = state_of(dues[i], leases[i], successors[i])
  state[id] = {word = word, record = records[i] or ''}
  if word == 'successor' then
    local _, record = split_successor(successors[i])
    state[id].record = record
  end
end

local answers, scores, shadows, waiting, armed, news = {}, {}, {}, {}, {}, {}
local accepted = 0
local story = noting(new_story(history), changes, calls_key)
for i, id in ipairs(ids) do
  local at = HEAD + (i - 1) * WIDTH
  local seen, when, header = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local job = state[id]
  local payload = ARGV[at + 6] == 'set' and ARGV[at + 5] or nil
  if not job.word or job.word == 'leased' and is_cancelled(leases[i]) then
    -- A cancelled run ends its job: a successor would bring the job back.
    answers[i] = 'absent'
  elseif is_old(place) and not leases[i] then
    answers[i] = 'elsewhere'
  elseif not is_as_seen(seen, job.word, job.record) then
    answers[i] = 'changed'
  else
    local due = due_ms(when, now)
    local what = 'updated'
    if job.word == 'leased' then
      local _, _, present = split_record(job.record)
      job.record = record_opening(begun(header, now), ms_of(stamp)) .. (payload or present)
      job.word, what = 'successor', 'succeeds'
      answers[i] = 'succeeds:' .. int(due)
      accepted = accepted + 1
    else
      job.record = with_step(job.record, 'updated', now, header, payload)
      answers[i] = (job.word == 'pending' and 'moved:' or 'successor:') .. int(due)
    end
    if job.word == 'pending' then
      shadows[#shadows + 1], shadows[#shadows + 2] = id, job.record
      scores[#scores + 1], scores[#scores + 2] = int(due), id
      armed[i] = int(due)
      note(news, id, due, now)
    else
      waiting[#waiting + 1], waiting[#waiting + 2] = id, int(due) .. ' ' .. job.record
    end
    tell(story, what, '', id, what == 'succeeds' and int(due) or '-', '-')
  end
end

-- The first write is one that a full Redis refuses.
local counts = {accepted = at_least_one(accepted)}
local _, fault = raise(stats_key, counts)
if fault then
  return fault
end
if #shadows > 0 then
  fault = error_in(redis.pcall('HSET', shadow_key, unpack(shadows)))
  if fault then
    lower(stats_key, counts)
    return fault
  end
  redis.call('ZADD', due_key, unpack(scores))
end
if #waiting > 0 then
  redis.call('HSET', next_key, unpack(waiting))
end
if #KEYS > FIXED then
  for i = 1, count do
    if armed[i] and not arm(KEYS[FIXED + i], marker, armed[i], now, state[ids[i]].record) then
      answers[i] = answers[i] .. '!'
    end
  end
end
write_changes(story, calls_key, now)
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply)
wake(ARGV[5], ARGV[6], news, before, now)
write_story(story, history_key, ARGV[3])
return {'ok', stamp, reply}
