-- take: takes a batch of jobs and dead letters that belong to another ledger by now out of this
-- one, and returns it. The batch stays aside in `leaving` until `drop`; meanwhile nothing else is
-- taken.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 shadow   keyfall:{app:module:biz/0}:shadow
--       3 lease    keyfall:{app:module:biz/0}:lease
--       4 dead     keyfall:{app:module:biz/0}:dead
--       5 grave    keyfall:{app:module:biz/0}:grave
--       6 stats    keyfall:{app:module:biz/0}:stats
--       7 calls    keyfall:{app:module:biz/0}:calls
--       8 leaving  keyfall:{app:module:biz/0}:leaving
--       9 adopted  keyfall:{app:module:biz/0}:adopted
-- ARGV  1 place, 2 late: the number of a batch that another ledger has refused as late, or zero,
--       3 above: if that batch is still here, it gets a number above this one, then names: the id
--       of a job, for the job, its last letters and the mark of its adopted key; `id:number` for a
--       letter; `*` for the counters
-- Reply {'ok', now µs, answers, batch, fence, what, id, number, at, record, what, id, …}; the same
--       with 'busy' and no answers if an earlier batch is still aside, which is returned instead;
--       or {'stale', now µs, layout} if this ledger has another layout; answers, separated by
--       blanks:
--       taken    the job, or letters of it, are in the batch, and nothing of it stays
--       leased   the job is running, and stays until it is settled; its letters are in the batch
--       absent   nothing of this name is here
--       waits    the batch was full before it
--       what is `job` (number is empty, at is the due time), `letter` (at is the time of death),
--       `mark` (at is the expiry of the adopted key), or `counters` (the record is
--       `name value name value …`)
-- Holds: may be repeated. Bounded by some 1 MiB of records. Works while Redis is full. The number
--       of a batch is the time in µs, or one more than the last number: it grows even after a
--       rollback, unless the clock went back too.

local due_key, shadow_key, lease_key, dead_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local grave_key, stats_key, calls_key, leaving_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local adopted_key = KEYS[9]
local HEAD = 3
local MOST_BYTES = 1024 * 1024
local now, stamp = now_us()

local kept = redis.call('HMGET', calls_key, 'layout', 'batch', 'fence')
local refused = misplaced(kept[1], ARGV[1], stamp)
if refused then
  return refused
end
local reply = {'ok', stamp, '', kept[2] or '0', kept[3] or '0'}

-- Adds one item of the batch to the reply; `name` is the `id` of a job, the `id:number` of a
-- letter, the `id:` of a mark, or `*` for the counters; `kept_as` is `at record`.
local function hand_over(name, kept_as)
  local id, number = string.match(name, '^([^:]*):?(%d*)$')
  local at, record = string.match(kept_as, '^(%d+) (.*)$')
  local what = name == '*' and 'counters' or name == id and 'job' or number == '' and 'mark'
    or 'letter'
  for _, part in ipairs({what, id, number, at, record}) do
    reply[#reply + 1] = part
  end
end

local aside = contents(leaving_key)
if #aside > 0 then
  reply[1] = 'busy'
  if kept[2] == ARGV[2] then
    reply[4] = int(math.max(tonumber(ARGV[3]) + 1, now))
    redis.call('HSET', calls_key, 'batch', reply[4])
  end
  for i = 1, #aside, 2 do
    hand_over(aside[i], aside[i + 1])
  end
  return reply
end

local names = {}
for i = 1, #ARGV - HEAD do
  names[i] = ARGV[HEAD + i]
end
if #names == 0 then
  return reply
end
local dues = redis.call('ZMSCORE', due_key, unpack(names))
local leases = redis.call('HMGET', lease_key, unpack(names))
local graves = redis.call('HMGET', grave_key, unpack(names))
local expiries = redis.call('ZMSCORE', adopted_key, unpack(names))
redis.call('ZSCORE', dead_key, '')
redis.call('HMGET', shadow_key, '')

local answers, jobs, letters, marks, counters = {}, {}, {}, {}, {}
local leaving, done, bytes = {}, {}, 0

local function lay_aside(list, name, at, record)
  if not done[name] then
    done[name] = true
    list[#list + 1] = name
    leaving[#leaving + 1], leaving[#leaving + 2] = name, whole(at) .. ' ' .. record
    bytes = bytes + #record
  end
end

local function lay_letter_aside(name, record)
  local died = redis.call('ZSCORE', dead_key, name)
  if died then
    lay_aside(letters, name, died, record or '')
  end
end

for i, name in ipairs(names) do
  local before = #leaving
  if bytes > MOST_BYTES then
    answers[i] = 'waits'
  elseif name == '*' then
    local counted = contents(stats_key)
    if #counted > 0 then
      lay_aside(counters, name, '0', table.concat(counted, ' '))
    end
  elseif string.find(name, ':', 1, true) then
    lay_letter_aside(name, graves[i])
  else
    if dues[i] and not leases[i] then
      lay_aside(jobs, name, due_text(dues[i]), redis.call('HGET', shadow_key, name) or '')
    end
    if expiries[i] and not leases[i] then
      lay_aside(marks, name .. ':', expiries[i], '')
    end
    for number in string.gmatch(graves[i] or '', '%d+') do
      local letter = name .. ':' .. number
      lay_letter_aside(letter, redis.call('HGET', grave_key, letter))
    end
  end
  answers[i] = answers[i] or leases[i] and 'leased' or #leaving > before and 'taken' or 'absent'
end
reply[3] = table.concat(answers, ' ')
if #leaving == 0 then
  return reply
end

-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('ZREM', due_key, '')
local _, fault = raise(stats_key,
  {moved_out = at_least_one(#jobs), letters_out = at_least_one(#letters)})
if fault then
  return fault
end
reply[4] = int(math.max((tonumber(kept[2] or 0) or 0) + 1, now))
redis.call('HSET', calls_key, 'batch', reply[4])
for i = 1, #leaving, 2 do
  redis.call('HSET', leaving_key, leaving[i], leaving[i + 1])
  hand_over(leaving[i], leaving[i + 1])
end
if #jobs > 0 then
  redis.call('ZREM', due_key, unpack(jobs))
  redis.call('HDEL', shadow_key, unpack(jobs))
  -- The other ledger notes the change; see `lib/changes.lua`.
  redis.pcall('ZREM', string.sub(calls_key, 1, -6) .. 'changes', unpack(jobs))
end
for _, name in ipairs(marks) do
  redis.call('ZREM', adopted_key, string.sub(name, 1, -2))
end
for _, name in ipairs(letters) do
  unbury(dead_key, grave_key, name)
end
if #counters > 0 then
  clear(stats_key)
end
return reply
