-- adopt: brings jobs into line with the changes that plain commands made to their keys.
--
-- KEYS  1 due       keyfall:{app:module:biz/0}:due
--       2 shadow    keyfall:{app:module:biz/0}:shadow
--       3 lease     keyfall:{app:module:biz/0}:lease
--       4 next      keyfall:{app:module:biz/0}:next
--       5 stats     keyfall:{app:module:biz/0}:stats
--       6 calls     keyfall:{app:module:biz/0}:calls
--       7 adopted   keyfall:{app:module:biz/0}:adopted
--       8 history   keyfall:{app:module:biz/0}:history
--       9… trigger  app:module:biz:id, one for each item: the plain key, which is only read
-- ARGV  1 who, 2 place, 3 wake channel, 4 subject (app:module:biz/0), 5 marker,
--       then for each item: id; 1 if the job belongs to another ledger by now and stays here only
--       while it runs, else 0; the most bytes of its payload; the reason for the look; how long
--       ago the expiry was heard (ms, for `over`). The reasons:
--       seen    the key was changed, or found by the search
--       gone    the key was deleted
--       over    the key expired
--       missed  the search found the key missing, and no event said why
--       begun   the job is leased and about to run
--       heard   as `begun`, and an event said that the key expired
--       asked   as `begun`; the answer says if the key is missing without a note of its expiry
--       lost    as `begun`; if the key is missing without a note of its expiry, the job is
--               cancelled, unless another call has moved it
-- Reply {'ok', now µs, answers}, followed by `unlisted` as in schedule; or {'stale', now µs,
--       layout} if this ledger has another layout; answers, separated by blanks:
--       created:due replaced:due succeeds:due   as in schedule
--       moved:due successor:due   the same value, with another expiry
--       cancelled   the key was deleted or no longer expires: its job does not start, even if it is
--                   leased and about to run
--       absent      there is nothing to adopt, and no adopted job to cancel
--       same        the key is adopted already, or is a trigger of ours
--       missing     the key is missing without a note of its expiry: it may have been deleted
--       elsewhere   the job belongs to another ledger by now: nothing was done
--       unread      the key was not looked at, because the values before it were many bytes
-- Holds: all items or none. Only the present state of a key counts, so any call may be repeated, be
--       late, or be made by several workers at once. What other calls change in an adopted job
--       stays until its key changes again. While Redis is full, a call that would store anything is
--       refused before its first write; other calls work.

local FIXED, HEAD, WIDTH = 8, 5, 5
local due_key, shadow_key, lease_key = KEYS[1], KEYS[2], KEYS[3]
local next_key, stats_key, calls_key = KEYS[4], KEYS[5], KEYS[6]
local adopted_key, history_key = KEYS[7], KEYS[8]
local marker = ARGV[5]
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)

-- The approximate number of bytes of values that one call reads.
local VALUE_BYTES = 4 * 1024 * 1024

-- The latest expiry that is told apart: a later due time would be that of a job that waits for the
-- turn of its group, see `lib/waiting.lua`.
local LATEST = 4000000000000000 - 1

-- The expiry of a key; before Redis 7.0 only the remaining time is known, to the millisecond.
local function expiry_of(key, known)
  local at = redis.pcall('PEXPIRETIME', key)
  if type(at) == 'number' then
    return math.min(at, LATEST)
  end
  at = redis.call('PTTL', key)
  if at < 0 then
    return at
  end
  at = math.min(now_ms + at, LATEST)
  return known and math.abs(at - known) <= 2 and known or at
end

-- The contents of a key: its time, its value, or the reason why the value cannot be a payload.
local function look_at(key, known, most)
  local expiry = expiry_of(key, known)
  if expiry < 0 then
    return expiry == -1 and 'lasting' or 'missing'
  end
  local bytes = redis.pcall('STRLEN', key)
  if type(bytes) ~= 'number' then
    local kind = redis.call('TYPE', key).ok
    if kind == 'string' then
      -- `STRLEN` failed for another reason, such as the rights of the user: this call raises the
      -- error, before anything is written.
      redis.call('STRLEN', key)
    end
    return 'timed', expiry, nil, 'the key held no string: ' .. kind
  elseif bytes > most then
    return 'timed', expiry, nil, 'the value of the key had ' .. int(bytes) .. ' bytes, more than '
      .. int(most)
  end
  return 'timed', expiry, redis.call('GET', key), nil, bytes
end

local function header_of(digest, unusable)
  return '{"v":1,"adopted":"' .. digest .. '"' ..
    (unusable and ',"unusable":"' .. unusable .. '"' or '') .. '}'
end

local kept = redis.call('HMGET', calls_key, 'history', 'layout', 'unlisted', 'archive',
  'changes')
local unlisted = kept[3] or nil
local refused = misplaced(kept[2], ARGV[2], stamp)
if refused then
  return refused
end

local ids, olds, mosts, whys, ages = {}, {}, {}, {}, {}
for i = 1, (#ARGV - HEAD) / WIDTH do
  local at = HEAD + WIDTH * (i - 1)
  ids[i], olds[i], mosts[i], whys[i], ages[i] =
    ARGV[at + 1], ARGV[at + 2] == '1', tonumber(ARGV[at + 3]), ARGV[at + 4], tonumber(ARGV[at + 5])
end
local dues = redis.call('ZMSCORE', due_key, unpack(ids))
local leases = redis.call('HMGET', lease_key, unpack(ids))
local successors = next_of(next_key, ids, leases)
local records = redis.call('HMGET', shadow_key, unpack(ids))
local expiries = redis.call('ZMSCORE', adopted_key, unpack(ids))
local before = soonest(due_key, stamp)
local story = noting(new_story(kept[1]), kept[5], calls_key)
local archive = kept[4] and open_archive(kept[4], calls_key, stamp, ARGV[1])

-- Keys that expired more than a second ago and whose jobs have ended: they leave `adopted`. The
-- other keys stay there, because later calls may ask whether they expired.
local over = {}
local old = {}
local expired = redis.call('ZCOUNT', adopted_key, '-inf', int(now_ms - 1000))
if expired > 0 then
  -- The start of the range varies, so that keys whose jobs have not ended cannot hide the others
  -- for ever.
  local most_old = 2 * #ids + 16
  local first = expired > most_old and now % (expired - most_old + 1) or 0
  old = redis.call('ZRANGE', adopted_key, int(first), int(math.min(first + most_old, expired) - 1))
end
if #old > 0 then
  local waiting_at = redis.call('ZMSCORE', due_key, unpack(old))
  local running = redis.call('HMGET', lease_key, unpack(old))
  for i, id in ipairs(old) do
    if not waiting_at[i] and not running[i] then
      over[#over + 1] = id
    end
  end
end

local answers, done, bytes_read = {}, {}, 0
local counts, news = {}, {}
local scores, shadows, waiting, seen, removed, dropped, marked = {}, {}, {}, {}, {}, {}, {}
local accepted_at = int(now_ms)

local function move(id, due)
  scores[#scores + 1], scores[#scores + 2] = int(due), id
  note(news, id, due, now)
end

-- Whether the reason for the look is that the job is leased and about to run.
local BEGUN = {begun = true, heard = true, asked = true, lost = true}
local function is_begun(i)
  return BEGUN[whys[i]]
end

-- The reasons for which a missing key means something else if it expires during this look.
local DOUBTFUL = {gone = true, missed = true, asked = true, lost = true}

-- The end of a pending job, or of a successor.
local function tell_archive(what, i, id)
  if archive and leases[i] then
    local due, record = split_successor(successors[i])
    archive_end(archive, what, id, record, nil, int(due))
  elseif archive then
    archive_end(archive, what, id, records[i], nil, due_text(dues[i]))
  end
end

-- The key has a value and an expiry: it becomes a job, unless it is one already.
local function take(i, id, expiry, value, unusable)
  local digest = redis.sha1hex(value or unusable)
  local known = tonumber(expiries[i] or nil)
  local waits
  if leases[i] and successors[i] then
    waits = select(2, split_successor(successors[i]))
  end
  local current = waits or records[i] or nil
  local was = current and adopted_from(current)
  local is_same = was == digest
  if known == expiry and (is_same or not was) then
    -- The key is as it was adopted; later changes of the job did not come through the key.
    answers[i] = 'same'
    if is_begun(i) and waits and was then
      -- The key was changed after the claim, and the change was adopted as the successor: this run
      -- must not start.
      answers[i] = 'successor:' .. int(expiry)
    elseif is_begun(i) and was and leases[i] and select(4, split_lease(leases[i])) == expiry then
      -- Redis keeps the key until the millisecond of its expiry is over, and a client may still
      -- change it.
      answers[i] = 'moved:' .. int(expiry)
    end
    return
  end
  seen[#seen + 1], seen[#seen + 2] = int(expiry), id
  local due = math.max(expiry, now_ms)
  if is_same and waits then
    waiting[#waiting + 1], waiting[#waiting + 2] = id, int(due) .. ' ' .. waits
    tell(story, 'postponed', 'key time', id, int(due), '-')
    answers[i] = 'successor:' .. int(due)
    return
  elseif is_same and dues[i] and known and known > now_ms then
    move(id, due)
    tell(story, 'postponed', 'key time', id, int(due), '-')
    answers[i] = 'moved:' .. int(due)
    return
  end
  local record = record_opening(begun(header_of(digest, unusable), now), accepted_at) .. (value or '')
  local what = is_same and 'key time' or 'key set'
  count_one(counts, 'accepted')
  if leases[i] then
    if waits then
      count_one(counts, 'replaced')
      tell_archive('replaced', i, id)
    end
    waiting[#waiting + 1], waiting[#waiting + 2] = id, int(due) .. ' ' .. record
    tell(story, 'succeeds', what, id, int(due), '-')
    answers[i] = 'succeeds:' .. int(due)
    return
  end
  shadows[#shadows + 1], shadows[#shadows + 2] = id, record
  move(id, due)
  if dues[i] then
    count_one(counts, 'replaced')
    tell_archive('replaced', i, id)
    tell(story, 'replaced', what, id, int(due), '-')
    answers[i] = 'replaced:' .. int(due)
  else
    tell(story, 'scheduled', 'key set', id, int(due), '-')
    answers[i] = 'created:' .. int(due)
  end
end

-- Whether the present job was adopted.
local function is_adopted(i)
  return records[i] and adopted_from(records[i])
end

-- The key will not expire any more: cancels its adopted job or successor that waits, or its leased
-- job that is about to run.
local function drop(i, id, why)
  answers[i] = 'absent'
  if leases[i] then
    if successors[i] then
      local _, waits = split_successor(successors[i])
      if adopted_from(waits) then
        dropped[#dropped + 1] = id
        count_one(counts, 'cancelled')
        tell_archive('cancelled', i, id)
        tell(story, 'cancelled', why, id, '-', '-')
        answers[i] = 'cancelled'
      end
    elseif (is_begun(i) or whys[i] == 'over') and is_adopted(i) then
      local token, claims, fence, due = split_lease(leases[i])
      marked[#marked + 1] = id
      marked[#marked + 1] = new_lease(token, claims, int(fence), int(due), 'cancelled')
      tell(story, 'stopping', why, id, '-', '-')
      answers[i] = 'cancelled'
    end
  elseif dues[i] and is_adopted(i) then
    removed[#removed + 1] = id
    count_one(counts, 'cancelled')
    tell_archive('cancelled', i, id)
    tell(story, 'cancelled', why, id, '-', '-')
    answers[i] = 'cancelled'
  end
end

-- Whether the expiry was heard before the present job was adopted: then an earlier key of this name
-- expired. A look comes so late if an instance makes it in place of one that is gone.
local function is_outdated(i)
  local successor = leases[i] and successors[i]
  local current = successor and select(2, split_successor(successor)) or records[i]
  if not current then
    return false
  end
  local _, steps = split_record(current)
  local adopted_at = tonumber(string.match(steps, '^%d+'))
  return adopted_at and adopted_at > now_ms - ages[i] and adopted_at <= now_ms
end

-- Whether the key got another expiry between the claim and the start of its job, and that time is
-- over, too: then the successor runs, and not this job.
local function was_renewed(i, known)
  if not (is_begun(i) and leases[i] and successors[i] and records[i] and known <= now_ms) then
    return false
  end
  local due, waits = split_successor(successors[i])
  local digest = adopted_from(waits)
  return digest and due == known and digest == adopted_from(records[i])
end

-- The key is missing. Only some of the reasons for the look say why.
local function miss(i, id, why)
  local known, due = tonumber(expiries[i] or nil), dues[i] and due_of(dues[i])
  local is_early = known and known > now_ms
  local may_be_lost = is_early
  if not is_early and known and leases[i] then
    -- A job that another call has rescheduled does not fall due with its key.
    may_be_lost = select(4, split_lease(leases[i])) == known
  end
  answers[i] = 'absent'
  if known and was_renewed(i, known) then
    answers[i] = 'successor:' .. int(known)
    return
  end
  if (why == 'gone' or why == 'missed') and is_early or why == 'lost' and may_be_lost then
    drop(i, id, why == 'gone' and 'key gone' or 'key lost')
  elseif why == 'asked' and may_be_lost then
    answers[i] = 'missing'
  elseif (why == 'over' or why == 'heard') and known then
    -- It is known to have expired.
    over[#over + 1] = id
    if due == known and is_early and is_adopted(i) then
      -- The key expired sooner than was known: it got a nearer expiry, and no look came in time.
      move(id, now_ms)
      tell(story, 'fired', 'key expired', id, int(now_ms), '-')
      answers[i] = 'moved:' .. int(now_ms)
    end
  end
end

for i, id in ipairs(ids) do
  if done[id] or bytes_read > VALUE_BYTES then
    answers[i] = done[id] and 'same' or 'unread'
  elseif olds[i] and not leases[i] then
    answers[i] = 'elsewhere'
  else
    done[id] = true
    -- A key whose time is over exists until a client looks at it.
    local all = DOUBTFUL[whys[i]] and redis.pcall('DBSIZE')
    local there, expiry, value, unusable, bytes =
      look_at(KEYS[FIXED + i], tonumber(expiries[i] or nil), mosts[i])
    bytes_read = bytes_read + (bytes or 0)
    if value == marker then
      answers[i] = 'same'
    elseif there == 'timed' then
      take(i, id, expiry, value, unusable)
    elseif there == 'lasting' then
      drop(i, id, 'key lasting')
    else
      local had_time = type(all) == 'number' and redis.call('DBSIZE') < all
      if whys[i] == 'over' and is_outdated(i) then
        answers[i] = 'absent'
      else
        miss(i, id, had_time and 'over' or whys[i])
      end
    end
  end
end

-- A call that stores something begins with a write that a full Redis refuses; any other with one
-- that it accepts.
if not counts.accepted then
  redis.call('ZREM', due_key, '')
end
local counted, fault = raise(stats_key, counts)
if fault then
  return fault
end
fault = write_archive(archive, calls_key)
if fault then
  lower(stats_key, counts)
  return fault
end
if counts.accepted and counted.accepted == counts.accepted then
  unlisted = begin_ledger(stamp, calls_key, string.sub(calls_key, 1, -6) .. 'lanes')
end
if #shadows > 0 then
  redis.call('HSET', shadow_key, unpack(shadows))
end
if #scores > 0 then
  redis.call('ZADD', due_key, unpack(scores))
end
if #waiting > 0 then
  redis.call('HSET', next_key, unpack(waiting))
end
if #removed > 0 then
  redis.call('ZREM', due_key, unpack(removed))
  redis.call('HDEL', shadow_key, unpack(removed))
end
if #dropped > 0 then
  redis.call('HDEL', next_key, unpack(dropped))
end
if #marked > 0 then
  redis.call('HSET', lease_key, unpack(marked))
end
if #over > 0 then
  redis.call('ZREM', adopted_key, unpack(over))
end
if #seen > 0 then
  redis.call('ZADD', adopted_key, unpack(seen))
end
write_changes(story, calls_key, now)
wake(ARGV[3], ARGV[4], news, before, now)
write_story(story, history_key, ARGV[1])
return {'ok', stamp, table.concat(answers, ' '), unlisted}
