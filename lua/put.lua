-- put: takes in jobs and dead letters that `take` has taken out of another ledger of the kind.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 shadow   keyfall:{app:module:biz/0}:shadow
--       3 lease    keyfall:{app:module:biz/0}:lease
--       4 dead     keyfall:{app:module:biz/0}:dead
--       5 grave    keyfall:{app:module:biz/0}:grave
--       6 stats    keyfall:{app:module:biz/0}:stats
--       7 calls    keyfall:{app:module:biz/0}:calls
--       8 history  keyfall:{app:module:biz/0}:history
--       9 adopted  keyfall:{app:module:biz/0}:adopted
--      10… trigger  app:module:biz:id, one for each item; none where triggers live elsewhere
-- ARGV  1 who, 2 place, 3 subject of the other ledger, 4 batch, 5 fence, 6 wake channel, 7 subject
--       (app:module:biz/0), 8 marker, then for each item: what (job | letter | mark | counters),
--       id, number of the letter (else empty), at (due time, time of death, or expiry of the key,
--       Unix ms), record
-- Reply {'ok', now µs}; {'late', now µs, batch} if a later batch, the one with this number, was
--       taken in before; or {'stale', now µs, layout} if this ledger has another layout
-- Holds: a batch is taken in once. The batches of a ledger come one after the other, with rising
--       numbers: a repeat has the number of the last batch, and a late batch a lower one. Later
--       fencing values are higher than those of the other ledger. A letter keeps its number, unless
--       another letter of its job has that number. Works while Redis is full.

local FIXED, HEAD, WIDTH = 9, 8, 5
local due_key, shadow_key, lease_key, dead_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local grave_key, stats_key, calls_key, history_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local adopted_key = KEYS[9]
local from, batch, marker = 'from/' .. ARGV[3], tonumber(ARGV[4]), ARGV[8]
local now, stamp = now_us()

local kept = redis.call('HMGET', calls_key, 'layout', from, 'fence', 'history', 'archive',
  'changes')
local refused = misplaced(kept[1], ARGV[2], stamp)
if refused then
  return refused
end
local last = tonumber(kept[2] or 0) or 0
if last == batch then
  return {'ok', stamp}
elseif last > batch then
  return {'late', stamp, kept[2]}
end

local jobs, letters, marks, counts = {}, {}, {}, {}
for at = HEAD, #ARGV - 1, WIDTH do
  local item = {id = ARGV[at + 2], number = ARGV[at + 3], at = ARGV[at + 4], record = ARGV[at + 5],
    trigger = KEYS[FIXED + (at - HEAD) / WIDTH + 1]}
  if ARGV[at + 1] == 'counters' then
    for name, value in string.gmatch(item.record, '(%S+) (%d+)') do
      -- Each ledger skips numbers on its own account, so `skipped` does not move.
      counts[name] = name ~= 'skipped' and tonumber(value) or nil
    end
  else
    local list = ARGV[at + 1] == 'job' and jobs or ARGV[at + 1] == 'mark' and marks or letters
    list[#list + 1] = item
  end
end
local before = soonest(due_key, stamp)
local story = noting(new_story(kept[4]), kept[6], calls_key)
if story and story.changed then
  -- The clock of the other ledger may be ahead: its versions of these jobs are not above the number
  -- of the batch.
  story.changed.version = math.max(story.changed.version, batch)
end
local news = {}
local archive = kept[5] and open_archive(kept[5], calls_key, stamp, ARGV[1])
for _, job in ipairs(jobs) do
  count_one(counts, 'moved_in')
  -- After a rollback of one of the two ledgers this one can have the job, too; its own is newer.
  job.is_old = redis.call('ZSCORE', due_key, job.id) or redis.call('HGET', lease_key, job.id)
  if job.is_old then
    count_one(counts, 'replaced')
    if archive then
      archive_end(archive, 'replaced', job.id, job.record, nil, job.at)
    end
  else
    note(news, job.id, tonumber(job.at), now)
    tell(story, 'moved', '', job.id, job.at, '-')
  end
end
local first_free = next_number(stats_key)
local next_free = first_free
for _, letter in ipairs(letters) do
  count_one(counts, 'letters_in')
  local number = tonumber(letter.number)
  if redis.call('HGET', grave_key, letter.id .. ':' .. letter.number) then
    number = next_free
  end
  letter.number = int(number)
  next_free = math.max(next_free, number + 1)
end
counts.skipped = at_least_one(next_free - first_free)
redis.call('HMGET', shadow_key, '')
redis.call('ZSCORE', dead_key, '')
redis.call('ZSCORE', adopted_key, '')

-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('ZREM', due_key, '')
local _, fault = raise(stats_key, counts)
if fault then
  return fault
end
fault = write_archive(archive, calls_key)
if fault then
  lower(stats_key, counts)
  return fault
end
redis.call('HSET', calls_key, from, ARGV[4], 'fence', int(math.max(tonumber(kept[3] or 0) or 0,
  tonumber(ARGV[5]))))
for _, job in ipairs(jobs) do
  if not job.is_old then
    redis.call('HSET', shadow_key, job.id, job.record)
    redis.call('ZADD', due_key, job.at, job.id)
    if job.trigger then
      arm(job.trigger, marker, job.at, now, job.record)
    end
  end
end
for _, mark in ipairs(marks) do
  -- After a rollback, the mark here is newer.
  redis.call('ZADD', adopted_key, 'NX', mark.at, mark.id)
end
for _, letter in ipairs(letters) do
  file(dead_key, grave_key, letter.id, letter.number, letter.at, letter.record)
end
write_changes(story, calls_key, now)
wake(ARGV[6], ARGV[7], news, before, now)
write_story(story, history_key, ARGV[1])
return {'ok', stamp}
