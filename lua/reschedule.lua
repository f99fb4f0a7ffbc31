-- reschedule: gives pending jobs another due time and keeps everything else. Firing now is the same
-- transition with the time `+0`.
--
-- KEYS  1 due       keyfall:{app:module:biz/0}:due
--       2 shadow    keyfall:{app:module:biz/0}:shadow
--       3 lease     keyfall:{app:module:biz/0}:lease
--       4 next      keyfall:{app:module:biz/0}:next
--       5 calls     keyfall:{app:module:biz/0}:calls
--       6 lanes     keyfall:{app:module:biz/0}:lanes
--       7 history   keyfall:{app:module:biz/0}:history
--       8… trigger  app:module:biz:id, one for each item; none where triggers live elsewhere
-- ARGV  1 lane, 2 number, 3 who, 4 place, 5 wake channel, 6 subject (app:module:biz/0),
--       7 marker,
--       then for each item: id, when ('+ms' or '@ms'; '>ms': that long after the present due time),
--       step (postponed | fired)
-- Reply {'ok', now µs, answers}, {'late', now µs}, or {'stale', now µs, layout} if this ledger has
--       another layout; answers, separated by blanks:
--       moved:due       pending, due at Unix ms
--       successor:due   running: the successor was moved
--       running         running, without a successor: nothing was done
--       absent          no such job
--       elsewhere       the job belongs to another ledger by now: nothing was done
--       …!              no trigger: its name holds a foreign value, or is the adopted key
-- Holds: all items or none. Refused before anything is written while Redis is full.

local FIXED, HEAD, WIDTH = 7, 7, 3
local due_key, shadow_key, lease_key, next_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local calls_key, lanes_key, history_key = KEYS[5], KEYS[6], KEYS[7]
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
  state[id] = {due = dues[i] and due_of(dues[i]), record = records[i], successor = successors[i]}
end

-- The new due time of a job that is due at `own`. An overdue job that stays overdue keeps its
-- place.
local function moved(when, own)
  if string.sub(when, 1, 1) == '>' then
    return own + tonumber(string.sub(when, 2))
  elseif when == '+0' then
    return math.min(due_ms(when, now), own)
  end
  return due_ms(when, now)
end

local answers, scores, shadows, waiting, armed = {}, {}, {}, {}, {}
local news = {}
local story = noting(new_story(history), changes, calls_key)
for i, id in ipairs(ids) do
  local at = HEAD + (i - 1) * WIDTH
  local when, step = ARGV[at + 2], ARGV[at + 3]
  local job = state[id]
  if leases[i] then
    if job.successor then
      local own, record = split_successor(job.successor)
      local due = moved(when, own)
      job.successor = int(due) .. ' ' .. with_step(record, step, now)
      waiting[#waiting + 1] = id
      waiting[#waiting + 1] = job.successor
      answers[i] = 'successor:' .. int(due)
      tell(story, step, '', id, int(due), '-')
    else
      answers[i] = 'running'
    end
  elseif is_old(place) then
    answers[i] = 'elsewhere'
  elseif dues[i] then
    local due = moved(when, job.due)
    job.due = due
    scores[#scores + 1] = int(due)
    scores[#scores + 1] = id
    if job.record then
      job.record = with_step(job.record, step, now)
      shadows[#shadows + 1] = id
      shadows[#shadows + 1] = job.record
    end
    answers[i] = 'moved:' .. int(due)
    tell(story, step, '', id, int(due), '-')
    armed[i] = int(due)
    note(news, id, due, now)
  else
    answers[i] = 'absent'
  end
end

if #scores > 0 then
  redis.call('ZADD', due_key, unpack(scores))
end
if #shadows > 0 then
  redis.call('HSET', shadow_key, unpack(shadows))
end
if #waiting > 0 then
  redis.call('HSET', next_key, unpack(waiting))
end
if #KEYS > FIXED then
  for i = 1, count do
    if armed[i] and not arm(KEYS[FIXED + i], marker, armed[i], now, state[ids[i]].record or '') then
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
