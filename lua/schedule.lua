-- schedule: creates jobs, or replaces those that are there. The newest call wins.
--
-- KEYS  1 due       keyfall:{app:module:biz/0}:due
--       2 shadow    keyfall:{app:module:biz/0}:shadow
--       3 lease     keyfall:{app:module:biz/0}:lease
--       4 next      keyfall:{app:module:biz/0}:next
--       5 stats     keyfall:{app:module:biz/0}:stats
--       6 calls     keyfall:{app:module:biz/0}:calls
--       7 lanes     keyfall:{app:module:biz/0}:lanes
--       8… trigger  app:module:biz:id, one for each item; none where triggers live elsewhere
-- ARGV  1 lane, 2 number, 3 wake channel, 4 subject (app:module:biz/0), 5 marker,
--       then for each item: id, mode (set | absent | present), when ('+ms' or '@ms'),
--       header, payload
-- Reply {'ok', now µs, answers} or {'late', now µs}; answers, separated by blanks:
--       created:due replaced:due   pending from now on, due at Unix ms
--       succeeds:due               running: takes over when the run has ended
--       exists absent              mode forbade it: nothing was done
--       …!                         the trigger's name holds a foreign value: no trigger
-- Holds: all items or none. Refused as a whole, before anything is written, while Redis is
--       full. The same id twice in one call counts as two calls, in order.

local FIXED, HEAD, WIDTH = 7, 5, 5
local due_key, shadow_key, lease_key, next_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stats_key, calls_key, lanes_key = KEYS[5], KEYS[6], KEYS[7]
local lane, number, marker = ARGV[1], tonumber(ARGV[2]), ARGV[5]
local now = now_us()

local past, known = past_reply(calls_key, lane, number, now)
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
local before = soonest(due_key, now)
redis.call('HLEN', shadow_key)

local state = {}
for i, id in ipairs(ids) do
  state[id] = {pending = dues[i], leased = leases[i], successor = successors[i]}
end

local answers, records, scores, waiting, armed = {}, {}, {}, {}, {}
local accepted, replaced, news = 0, 0, {}
for i, id in ipairs(ids) do
  local at = HEAD + (i - 1) * WIDTH
  local mode, when, header, payload = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  local job = state[id]
  local present = job.leased or job.pending
  if mode == 'absent' and present then
    answers[i] = 'exists'
  elseif mode == 'present' and not present then
    answers[i] = 'absent'
  else
    local due = due_ms(when, now)
    local record = new_record(header, payload, now)
    accepted = accepted + 1
    if job.leased then
      if job.successor then
        replaced = replaced + 1
      end
      job.successor = true
      waiting[#waiting + 1] = id
      waiting[#waiting + 1] = int(due) .. ' ' .. record
      answers[i] = 'succeeds:' .. int(due)
    else
      if job.pending then
        replaced = replaced + 1
      end
      answers[i] = (job.pending and 'replaced:' or 'created:') .. int(due)
      job.pending = true
      records[#records + 1] = id
      records[#records + 1] = record
      scores[#scores + 1] = int(due)
      scores[#scores + 1] = id
      armed[i] = due
      note(news, id, due, now)
    end
  end
end

-- The first write is one that a full Redis refuses, and one that can still fail for its
-- type without harm; whatever follows was checked above.
if accepted > 0 then
  redis.call('HINCRBY', stats_key, 'accepted', accepted)
  if replaced > 0 then
    redis.call('HINCRBY', stats_key, 'replaced', replaced)
  end
end
if #records > 0 then
  redis.call('HSET', shadow_key, unpack(records))
  redis.call('ZADD', due_key, unpack(scores))
end
if #waiting > 0 then
  redis.call('HSET', next_key, unpack(waiting))
end
if #KEYS > FIXED then
  for i = 1, count do
    if armed[i] and not arm(KEYS[FIXED + i], marker, armed[i], now) then
      answers[i] = answers[i] .. '!'
    end
  end
end
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, number, known, now, reply)
wake(ARGV[3], ARGV[4], news, before)
return {'ok', int(now), reply}
