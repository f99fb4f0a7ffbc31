-- plan: stores, moves and removes the jobs of series, if they are as the caller has seen them.
--
-- KEYS  1 due       keyfall:{app:module:biz/0}:due
--       2 shadow    keyfall:{app:module:biz/0}:shadow
--       3 lease     keyfall:{app:module:biz/0}:lease
--       4 stats     keyfall:{app:module:biz/0}:stats
--       5 calls     keyfall:{app:module:biz/0}:calls
--       6 lanes     keyfall:{app:module:biz/0}:lanes
--       7 history   keyfall:{app:module:biz/0}:history
--       8… trigger  app:module:biz:id, one for each job; none where triggers live elsewhere
-- ARGV  1 lane, 2 number, 3 who, 4 place, 5 wake channel, 6 subject (app:module:biz/0),
--       7 marker,
--       then for each series: number of its jobs, which are its plan and those members that change,
--       and for each of these jobs: id; seen, which is empty for no job, else `pending`, a blank
--       and the first two lines of its record; when ('+ms' or '@ms'), or nothing to remove it;
--       header, payload, and `keep` if the present payload stays, else `set`
-- Reply {'ok', now µs, answers}, followed by `unlisted` (the time at which this ledger began, µs)
--       until a client has registered the kind; {'late', now µs}, or {'stale', now µs, layout} if
--       this ledger has another layout; answers, one for each series, separated by blanks:
--       planned    all of its jobs are as asked for
--       changed    one of them is not as the caller has seen it: nothing was done
--       elsewhere  they belong to another ledger by now: nothing was done
--       …!         a job has no trigger: its name holds a foreign value, or is the adopted key
-- Holds: all jobs of a series or none. Refused as a whole, before anything is written, while Redis
--       is full; a call that only removes jobs works then, too.

local FIXED, HEAD, WIDTH = 7, 7, 6
local due_key, shadow_key, lease_key = KEYS[1], KEYS[2], KEYS[3]
local stats_key, calls_key, lanes_key, history_key = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local lane, number, place, marker = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[7]
local now, stamp = now_us()

local past, known, history, unlisted, _, archived, changes =
  past_reply(calls_key, lane, number, stamp, place)
if past then
  past[4] = unlisted
  return past
end

local ids, series = {}, {}
local at = HEAD
while at < #ARGV do
  local first = at + 2
  at = at + 1 + WIDTH * tonumber(ARGV[at + 1])
  series[#series + 1] = {first = first, last = at, before = #ids}
  for word = first, at, WIDTH do
    ids[#ids + 1] = ARGV[word]
  end
end
local dues = redis.call('ZMSCORE', due_key, unpack(ids))
local leases = redis.call('HMGET', lease_key, unpack(ids))
local records = redis.call('HMGET', shadow_key, unpack(ids))
local before = soonest(due_key, stamp)
local archive = archived and open_archive(archived, calls_key, stamp, ARGV[3])

local jobs = {}
for i, id in ipairs(ids) do
  jobs[id] = jobs[id] or {leased = leases[i], due = dues[i] and whole(due_text(dues[i])),
    record = records[i] or ''}
end

local function is_seen(job, seen)
  if job.leased or not job.due then
    return seen == '' and not job.leased
  end
  return seen ~= '' and string.sub('pending ' .. job.record, 1, #seen) == seen
end

local answers, changed, moves, news = {}, {}, {}, {}
local accepted, cancelled = 0, 0
local accepted_at = ms_of(stamp)
local story = noting(new_story(history), changes, calls_key)

local function put(id, job, due, text, header, payload)
  local what = job.due and (job.due == text and 'updated' or 'postponed') or 'scheduled'
  if job.due then
    job.record = with_step(job.record, what, now, header, payload)
  else
    job.record = record_opening(begun(header, now), accepted_at) .. (payload or '')
    accepted = accepted + 1
  end
  job.due = text
  note(news, id, due, now)
  tell(story, what, '', id, what == 'updated' and '-' or text, '-')
end

for n, one in ipairs(series) do
  answers[n] = is_old(place) and 'elsewhere' or 'planned'
  for word = one.first, one.last, WIDTH do
    if answers[n] == 'planned' and not is_seen(jobs[ARGV[word]], ARGV[word + 1]) then
      answers[n] = 'changed'
    end
  end
  for word = one.first, answers[n] == 'planned' and one.last or 0, WIDTH do
    local id, when = ARGV[word], ARGV[word + 2]
    local job = jobs[id]
    local nth = one.before + 1 + (word - one.first) / WIDTH
    if when ~= '' then
      local due, text = due_ms(when, now)
      put(id, job, due, text, ARGV[word + 3], ARGV[word + 5] == 'set' and ARGV[word + 4] or nil)
      changed[id], moves[nth] = true, 'arm'
    elseif job.due then
      cancelled = cancelled + 1
      if archive then
        archive_end(archive, 'cancelled', id, job.record, nil, job.due)
      end
      job.due = nil
      tell(story, 'cancelled', '', id, '-', '-')
      changed[id], moves[nth] = true, 'disarm'
    end
  end
end

local scores, shadows, removed = {}, {}, {}
for id in pairs(changed) do
  local job = jobs[id]
  if job.due then
    shadows[#shadows + 1], shadows[#shadows + 2] = id, job.record
    scores[#scores + 1], scores[#scores + 2] = job.due, id
  else
    removed[#removed + 1] = id
  end
end

-- The first write is one that a full Redis refuses, unless jobs are only removed.
if #shadows == 0 then
  redis.call('HDEL', shadow_key, '')
end
local counts = {accepted = at_least_one(accepted), cancelled = at_least_one(cancelled)}
local counted, fault = raise(stats_key, counts)
if fault then
  return fault
end
fault = write_archive(archive, calls_key)
if fault then
  lower(stats_key, counts)
  return fault
end
if accepted > 0 and counted.accepted == accepted then
  unlisted = begin_ledger(stamp, calls_key, lanes_key)
end
if #shadows > 0 then
  fault = error_in(redis.pcall('HSET', shadow_key, unpack(shadows)))
  if fault then
    lower(stats_key, counts)
    return fault
  end
  redis.call('ZADD', due_key, unpack(scores))
end
if #removed > 0 then
  redis.call('ZREM', due_key, unpack(removed))
  redis.call('HDEL', shadow_key, unpack(removed))
end
if #KEYS > FIXED then
  for n, one in ipairs(series) do
    for word = one.first, one.last, WIDTH do
      local i = one.before + 1 + (word - one.first) / WIDTH
      local job = jobs[ARGV[word]]
      if moves[i] == 'disarm' then
        disarm(KEYS[FIXED + i], marker)
      elseif moves[i] and not arm(KEYS[FIXED + i], marker, job.due, now, job.record) then
        answers[n] = 'planned!'
      end
    end
  end
end
write_changes(story, calls_key, now)
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply)
wake(ARGV[5], ARGV[6], news, before, now)
write_story(story, history_key, ARGV[3])
return {'ok', stamp, reply, unlisted}
