-- audit: says what is wrong with these names, and mends it on request: nothing disappears, and
-- the books balance afterwards as well as before, or better.
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
-- ARGV  1 repair: one to mend, zero to look, 2 lease ms: how long a lease lasts that is mended,
--       3 wake channel, 4 subject (app:module:biz/0), 5 who, then for each item: name (an id, or
--       the `id:number` of a dead letter), header (of the letter that it becomes, or of the
--       letter without a record)
-- Reply {'ok', now µs, answers}; answers, separated by blanks, each with what mending does:
--       sound       nothing is wrong
--       bare        due, without a record: becomes a dead letter
--       stray       a record, of a job neither due nor leased: becomes a dead letter
--       twice       both due and leased: what is due becomes the successor, unless there is one
--       tokenless   it has a deadline and no lease: gets one that nobody holds
--       timeless    it has a lease and no deadline: gets one
--       blank       lapsed, without a record: becomes a dead letter; its successor pending
--       blind       leased, without a record: left alone
--       headless    the successor of a job that is not leased: becomes pending
--       wordless    a dead letter without a record: gets one
--       undead      the record of a letter that is not among the dead: becomes one of them
--       misfiled    the id leads to letters that are not there: leads to the others only
-- Holds: looks and mends in one step, so what is mended was broken. Takes no lane: a repeat, or
--       a late original, finds it sound. Works while Redis is full. What is to be present
--       without having been counted is counted as accepted, unless a job is missing by the
--       counters.

local HEAD, WIDTH = 5, 2
local due_key, shadow_key, leased_key, lease_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local next_key, dead_key, grave_key, stats_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local calls_key, history_key = KEYS[9], KEYS[10]
local repair = ARGV[1] == '1'
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)

local function counter(name)
  return tonumber(redis.call('HGET', stats_key, name) or 0) or 0
end

-- How many jobs, and how many letters, have come and are not accounted for.
local missing = counter('accepted') + counter('requeued') + counter('moved_in')
  - members(due_key) - members(leased_key) - fields(next_key)
  - counter('done') - counter('cancelled') - counter('replaced') - counter('buried')
  - counter('moved_out')
local missing_letters = counter('buried') + counter('letters_in') - counter('requeued')
  - counter('deleted') - counter('trimmed') - counter('letters_out') - members(dead_key)
local before = soonest(due_key, now)
local story = new_story(redis.call('HGET', calls_key, 'history'))

local answers, faults, done = {}, {}, {}
local counts = {accepted = 0, buried = 0, replaced = 0}
for at = HEAD + 1, #ARGV, WIDTH do
  local name = ARGV[at]
  answers[#answers + 1] = done[name] or fault_of(KEYS, name, now_ms)
  local fault = answers[#answers]
  if repair and not done[name] and fault ~= 'sound' and fault ~= 'blind' then
    local job = {name = name, fault = fault, header = ARGV[at + 1]}
    faults[#faults + 1] = job
    tell(story, 'repaired', fault, string.match(name, '^[^:]*'), '-', '-')
    job.due = tonumber(redis.call('ZSCORE', due_key, name) or nil)
    job.record = redis.call('HGET', shadow_key, name) or ''
    job.successor = redis.call('HGET', next_key, name)
    local numbers = redis.call('HGET', grave_key, name)
    job.kept = {}
    for number in string.gmatch(fault == 'misfiled' and numbers or '', '%S+') do
      if redis.call('ZSCORE', dead_key, name .. ':' .. number) then
        job.kept[#job.kept + 1] = number
      end
    end
    if fault == 'bare' or fault == 'stray' or fault == 'blank' then
      counts.buried = counts.buried + 1
    end
    if fault == 'stray' or fault == 'timeless' then
      counts.accepted = counts.accepted + (missing > 0 and 0 or 1)
      missing = missing - 1
    elseif fault == 'undead' then
      local known = missing_letters > 0
      counts.accepted = counts.accepted + (known and 0 or 1)
      counts.buried = counts.buried + (known and 0 or 1)
      missing_letters = missing_letters - 1
    elseif fault == 'twice' and job.successor or fault == 'headless' and job.due then
      counts.replaced = counts.replaced + 1
    end
  end
  done[name] = fault
end
local reply = {'ok', stamp, table.concat(answers, ' ')}
if #faults == 0 then
  return reply
end

local number = counter('buried') + counter('skipped')
local news = {}

local function to_pending(job, due, record)
  redis.call('ZADD', due_key, int(due), job.name)
  redis.call('HSET', shadow_key, job.name, record)
  redis.call('HDEL', next_key, job.name)
  note(news, job.name, due, now)
end

local function to_dead(job)
  number = number + 1
  redis.call('HDEL', shadow_key, job.name)
  bury(dead_key, grave_key, job.name, number, now_ms,
    with_step(job.record, 'buried', now, job.header))
end

local mend = {}

function mend.bare(job)
  redis.call('ZREM', due_key, job.name)
  to_dead(job)
end

mend.stray = to_dead

function mend.twice(job)
  redis.call('ZREM', due_key, job.name)
  if not job.successor then
    redis.call('HSET', next_key, job.name, int(job.due) .. ' ' .. job.record)
  end
end

function mend.tokenless(job)
  local lapse = tonumber(redis.call('ZSCORE', leased_key, job.name))
  redis.call('HSET', lease_key, job.name, new_lease('nobody', 1, 0, lapse, '-'))
end

function mend.timeless(job)
  redis.call('ZADD', leased_key, int(now_ms + tonumber(ARGV[2])), job.name)
end

function mend.blank(job)
  redis.call('ZREM', leased_key, job.name)
  redis.call('HDEL', lease_key, job.name)
  to_dead(job)
  if job.successor then
    to_pending(job, split_successor(job.successor))
  end
end

function mend.headless(job)
  to_pending(job, split_successor(job.successor))
end

function mend.wordless(job)
  redis.call('HSET', grave_key, job.name, with_step('', 'buried', now, job.header))
end

function mend.undead(job)
  redis.call('ZADD', dead_key, int(now_ms), job.name)
end

function mend.misfiled(job)
  if #job.kept > 0 then
    redis.call('HSET', grave_key, job.name, table.concat(job.kept, ' '))
  else
    redis.call('HDEL', grave_key, job.name)
  end
end

-- A full Redis lets a script run on if its first write is a removal: even one of nothing. Then
-- the counters, since a counter that somebody broke is all that can still fail.
redis.call('ZREM', due_key, '')
for name, times in pairs(counts) do
  if times > 0 then
    redis.call('HINCRBY', stats_key, name, times)
  end
end
for _, job in ipairs(faults) do
  mend[job.fault](job)
end
wake(ARGV[3], ARGV[4], news, before, now)
write_story(story, history_key, ARGV[5])
return reply
