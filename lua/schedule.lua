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

local ids = {}
for i = 1, (#ARGV - HEAD) / WIDTH do
  ids[i] = ARGV[HEAD + (i - 1) * WIDTH + 1]
end
local dues = redis.call('ZMSCORE', due_key, unpack(ids))
local leases = redis.call('HMGET', lease_key, unpack(ids))
local successors = next_of(next_key, ids, leases)
local before = soonest(due_key, now)

-- Most items of a batch ask for the same delay.
local due_of, text_of = {}, {}
local function due_and_text(when)
  if not due_of[when] then
    due_of[when] = due_ms(when, now)
    text_of[when] = int(due_of[when])
  end
  return due_of[when], text_of[when]
end

local answers, records, scores, waiting, armed = {}, {}, {}, {}, {}
local counts, news = {}, {}
local accepted_at = int(math.floor(now / 1000))
local item_of = {}
for i, id in ipairs(ids) do
  local at = HEAD + (i - 1) * WIDTH
  local mode = ARGV[at + 2]
  local earlier = item_of[id]
  if earlier then
    dues[i], leases[i], successors[i] = dues[earlier], leases[earlier], successors[earlier]
  end
  item_of[id] = i
  local present = leases[i] or dues[i]
  if mode == 'absent' and present then
    answers[i] = 'exists'
  elseif mode == 'present' and not present then
    answers[i] = 'absent'
  else
    local due, text = due_and_text(ARGV[at + 3])
    local record = new_record(ARGV[at + 4], accepted_at, ARGV[at + 5])
    local held = leases[i] and successors[i] or not leases[i] and dues[i]
    count_one(counts, 'accepted')
    if held then
      count_one(counts, 'replaced')
    end
    if leases[i] then
      successors[i] = true
      waiting[#waiting + 1] = id
      waiting[#waiting + 1] = text .. ' ' .. record
      answers[i] = 'succeeds:' .. text
    else
      answers[i] = (held and 'replaced:' or 'created:') .. text
      dues[i] = text
      records[#records + 1] = id
      records[#records + 1] = record
      scores[#scores + 1] = text
      scores[#scores + 1] = id
      armed[i] = due
      note(news, id, due, now)
    end
  end
end

-- The first write is one that a full Redis refuses. Of the others, only the records were not
-- read, and may be of a wrong type.
local _, fault = raise(stats_key, counts)
if fault then
  return fault
end
if #records > 0 then
  fault = error_in(redis.pcall('HSET', shadow_key, unpack(records)))
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
  for i = 1, #ids do
    if armed[i] and not arm(KEYS[FIXED + i], marker, armed[i], now) then
      answers[i] = answers[i] .. '!'
    end
  end
end
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, number, known, now, reply)
wake(ARGV[3], ARGV[4], news, before, now)
return {'ok', int(now), reply}
