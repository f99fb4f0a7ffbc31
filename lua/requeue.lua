-- requeue: makes dead letters pending again, as jobs that have not been tried yet.
--
-- KEYS  1 due       keyfall:{app:module:biz/0}:due
--       2 shadow    keyfall:{app:module:biz/0}:shadow
--       3 lease     keyfall:{app:module:biz/0}:lease
--       4 dead      keyfall:{app:module:biz/0}:dead
--       5 grave     keyfall:{app:module:biz/0}:grave
--       6 stats     keyfall:{app:module:biz/0}:stats
--       7 calls     keyfall:{app:module:biz/0}:calls
--       8 lanes     keyfall:{app:module:biz/0}:lanes
--       9 history   keyfall:{app:module:biz/0}:history
--      10… trigger  app:module:biz:id, one for each item; none where triggers live elsewhere
-- ARGV  1 lane, 2 number, 3 who, 4 place, 5 wake channel, 6 subject (app:module:biz/0),
--       7 marker,
--       then for each item: id, number of the letter, when ('+ms' or '@ms'), header
-- Reply {'ok', now µs, answers}, followed by `unlisted` (the time at which this ledger began, µs)
--       until a client has registered the kind; {'late', now µs}, or {'stale', now µs, layout} if
--       this ledger has another layout; answers, separated by blanks:
--       requeued:due   pending from now on, due at Unix ms; the letter is gone
--       present        a job of this name is pending or runs: the letter stays
--       absent         no such letter
--       elsewhere      the letter belongs to another ledger by now: nothing was done
--       …!             no trigger: its name holds a foreign value, or is the adopted key
-- Holds: a letter never changes, so the caller may compose the header from a copy that it has read
--       before. All items or none. Refused before anything is written while Redis is full.

local FIXED, HEAD, WIDTH = 9, 7, 4
local due_key, shadow_key, lease_key, dead_key, grave_key =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local stats_key, calls_key, lanes_key, history_key = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local lane, number, place, marker = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[7]
local now, stamp = now_us()

local past, known, history, unlisted, _, _, changes =
  past_reply(calls_key, lane, number, stamp, place)
if past then
  past[4] = unlisted
  return past
end

local ids, names = {}, {}
for i = 1, (#ARGV - HEAD) / WIDTH do
  local at = HEAD + (i - 1) * WIDTH
  ids[i] = ARGV[at + 1]
  names[i] = ARGV[at + 1] .. ':' .. ARGV[at + 2]
end
local dues = redis.call('ZMSCORE', due_key, unpack(ids))
local leases = redis.call('HMGET', lease_key, unpack(ids))
local deaths = redis.call('ZMSCORE', dead_key, unpack(names))
local records = redis.call('HMGET', grave_key, unpack(names))
local before = soonest(due_key, stamp)

local answers, raised, shadows, scores = {}, {}, {}, {}
local armed, armed_for = {}, {}
local present, gone = {}, {}
local news = {}
local story = noting(new_story(history), changes, calls_key)
for i, id in ipairs(ids) do
  local at = HEAD + (i - 1) * WIDTH
  if is_old(place) then
    answers[i] = leases[i] and 'present' or 'elsewhere'
  elseif not deaths[i] or not records[i] or gone[names[i]] then
    answers[i] = 'absent'
  elseif dues[i] or leases[i] or present[id] then
    answers[i] = 'present'
  else
    local due = due_ms(ARGV[at + 3], now)
    present[id] = true
    gone[names[i]] = true
    raised[#raised + 1] = names[i]
    armed_for[i] = with_step(records[i], 'requeued', now, ARGV[at + 4])
    shadows[#shadows + 1] = id
    shadows[#shadows + 1] = armed_for[i]
    scores[#scores + 1] = int(due)
    scores[#scores + 1] = id
    answers[i] = 'requeued:' .. int(due)
    tell(story, 'requeued', '', id, int(due), '-')
    armed[i] = int(due)
    note(news, id, due, now)
  end
end

-- The first write is one that a full Redis refuses. The key of the records was not read, so its type
-- may be wrong.
if #raised > 0 then
  local counts = {requeued = #raised}
  local _, fault = raise(stats_key, counts)
  if fault then
    return fault
  end
  fault = error_in(redis.pcall('HSET', shadow_key, unpack(shadows)))
  if fault then
    lower(stats_key, counts)
    return fault
  end
  redis.call('ZADD', due_key, unpack(scores))
end
for _, name in ipairs(raised) do
  unbury(dead_key, grave_key, name)
end
if #KEYS > FIXED then
  for i, due in pairs(armed) do
    if not arm(KEYS[FIXED + i], marker, due, now, armed_for[i]) then
      answers[i] = answers[i] .. '!'
    end
  end
end
write_changes(story, calls_key, now)
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply)
wake(ARGV[5], ARGV[6], news, before, now)
write_story(story, history_key, ARGV[3])
return {'ok', stamp, reply, unlisted}
