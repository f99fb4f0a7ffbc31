-- update: gives jobs another payload and keeps everything else.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 shadow   keyfall:{app:module:biz/0}:shadow
--       3 lease    keyfall:{app:module:biz/0}:lease
--       4 next     keyfall:{app:module:biz/0}:next
--       5 calls    keyfall:{app:module:biz/0}:calls
--       6 lanes    keyfall:{app:module:biz/0}:lanes
--       7 history  keyfall:{app:module:biz/0}:history
-- ARGV  1 lane, 2 number, 3 who, 4 place, then for each item: id, payload
-- Reply {'ok', now µs, answers}, {'late', now µs}, or {'stale', now µs, layout} if this ledger has
--       another layout; answers, separated by blanks:
--       updated:due     pending, due at Unix ms
--       successor:due   running: the successor was changed
--       running         running, without a successor: the run keeps its payload, and a later run of
--                       the job gets the new one
--       absent          no such job
--       elsewhere       the job belongs to another ledger by now: nothing was done
-- Holds: all items or none. Refused before anything is written while Redis is full.

local HEAD, WIDTH = 4, 2
local due_key, shadow_key, lease_key, next_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local calls_key, lanes_key, history_key = KEYS[5], KEYS[6], KEYS[7]
local lane, number, place = ARGV[1], tonumber(ARGV[2]), ARGV[4]
local now, stamp = now_us()

local past, known, history, _, _, _, changes =
  past_reply(calls_key, lane, number, stamp, place)
if past then
  return past
end

local ids = {}
for i = 1, (#ARGV - HEAD) / WIDTH do
  ids[i] = ARGV[HEAD + (i - 1) * WIDTH + 1]
end
local dues = redis.call('ZMSCORE', due_key, unpack(ids))
local leases = redis.call('HMGET', lease_key, unpack(ids))
local successors = redis.call('HMGET', next_key, unpack(ids))
local records = redis.call('HMGET', shadow_key, unpack(ids))

local state = {}
for i, id in ipairs(ids) do
  -- A record that is missing stays damaged, and its job will be buried with this payload.
  state[id] = {record = records[i] or '', successor = successors[i]}
end

local answers, shadows, waiting = {}, {}, {}
local story = noting(new_story(history), changes, calls_key)
for i, id in ipairs(ids) do
  local payload, job = ARGV[HEAD + (i - 1) * WIDTH + 2], state[id]
  if leases[i] and job.successor then
    local due, record = split_successor(job.successor)
    job.successor = int(due) .. ' ' .. with_step(record, 'updated', now, nil, payload)
    waiting[#waiting + 1] = id
    waiting[#waiting + 1] = job.successor
    answers[i] = 'successor:' .. int(due)
  elseif is_old(place) and not leases[i] then
    answers[i] = 'elsewhere'
  elseif leases[i] or dues[i] then
    job.record = with_step(job.record, 'updated', now, nil, payload)
    shadows[#shadows + 1] = id
    shadows[#shadows + 1] = job.record
    answers[i] = leases[i] and 'running' or 'updated:' .. int(due_of(dues[i]))
  else
    answers[i] = 'absent'
  end
  if answers[i] ~= 'absent' and answers[i] ~= 'elsewhere' then
    tell(story, 'updated', '', id, '-', '-')
  end
end

if #shadows > 0 then
  redis.call('HSET', shadow_key, unpack(shadows))
end
if #waiting > 0 then
  redis.call('HSET', next_key, unpack(waiting))
end
write_changes(story, calls_key, now)
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply)
write_story(story, history_key, ARGV[3])
return {'ok', stamp, reply}
