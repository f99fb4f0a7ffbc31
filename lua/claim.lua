-- claim: leases jobs that are due, and returns their records. One caller gets each job.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 shadow   keyfall:{app:module:biz/0}:shadow
--       3 leased   keyfall:{app:module:biz/0}:leased
--       4 lease    keyfall:{app:module:biz/0}:lease
--       5 calls    keyfall:{app:module:biz/0}:calls
--       6 lanes    keyfall:{app:module:biz/0}:lanes
--       7 history  keyfall:{app:module:biz/0}:history
-- ARGV  1 lane, 2 number, 3 who, 4 lease ms, 5 fill: the most jobs to take beside the named ones,
--       the oldest first, 6 sources: one letter for each named id, how it was found (e event,
--       p pacer, r reconciler, b backlog), then the named ids
-- Reply {'ok', now µs, misses, id, lease, record, id, lease, record, …}, the same with
--       'paused' instead of 'ok' and no jobs if the kind is paused, or {'late', now µs};
--       misses, one for each named id, separated by blanks:
--       claimed   the job is in this reply
--       early:ms  due in so many ms; 0 if the reply was full before it
--       paused    due, but its kind is paused
--       leased    it is running
--       absent    no such job
--       `lease` is `token claims fence due flag`; the token is `lane-number`. A job whose record
--       is missing comes with an empty one, so that the caller can bury it.
-- Holds: a repeated call gets those of its jobs whose leases it still holds, and these leases count
--       from now. The jobs of one call share a fencing value, which is higher than all earlier ones
--       of the ledger. Works while Redis is full.

-- From this many leases on, a lookup in a listpack costs more than one in a hash table. Redis makes
-- a hash a table if a value is longer than `hash-max-listpack-value`, 64 bytes: zeros before the
-- number of attempts make the lease so long.
local CROWD = 16

local HEAD = 6
local due_key, shadow_key, leased_key, lease_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local calls_key, lanes_key, history_key = KEYS[5], KEYS[6], KEYS[7]
local lane, number = ARGV[1], tonumber(ARGV[2])
local token = lane .. '-' .. ARGV[2]
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)
local deadline = int(math.ceil(now / 1000) + tonumber(ARGV[4]))

local seen, remembered, known, last_fence, since, history = recall(calls_key, lane, number)
if seen == 'late' then
  return {'late', stamp}
elseif seen == 'again' then
  return hand_out_again(shadow_key, leased_key, lease_key, stamp, token, remembered, deadline)
end

local paused = is_paused(since)
local fence = math.max(now, last_fence + 1)
local misses, taken, dues_taken, named, place = {}, {}, {}, {}, {}
if #ARGV > HEAD then
  local ids = {}
  for i = 1, #ARGV - HEAD do
    ids[i] = ARGV[HEAD + i]
  end
  local dues = redis.call('ZMSCORE', due_key, unpack(ids))
  for i, id in ipairs(ids) do
    local due = tonumber(dues[i] or nil)
    if due and due <= now_ms and paused then
      misses[i] = 'paused'
    elseif due and due <= now_ms then
      misses[i] = 'claimed'
      if not named[id] then
        named[id] = true
        taken[#taken + 1] = id
        dues_taken[#taken] = dues[i]
        place[#taken] = i
      end
    elseif due then
      misses[i] = 'early:' .. int(due - now_ms)
    elseif redis.call('HEXISTS', lease_key, id) == 1 then
      misses[i] = 'leased'
    else
      misses[i] = 'absent'
    end
  end
end
local fill = paused and 0 or tonumber(ARGV[5])
if fill > 0 then
  local oldest = redis.call('ZRANGEBYSCORE', due_key, '-inf', int(now_ms), 'WITHSCORES',
    'LIMIT', 0, fill + #taken)
  for i = 1, #oldest, 2 do
    if fill > 0 and not named[oldest[i]] then
      fill = fill - 1
      taken[#taken + 1] = oldest[i]
      dues_taken[#taken] = oldest[i + 1]
    end
  end
end

local records = read_records(shadow_key, taken, REPLY_BYTES)
for i = #taken, #records + 1, -1 do
  if place[i] then
    misses[place[i]] = 'early:0'
  end
  taken[i] = nil
end

-- Jobs that are due at the same time share the text of their leases: making it anew for each would
-- cost as much as storing it.
local leases, held, deadlines = {}, {}, {}
local is_crowd = #taken > 0 and #taken + redis.call('ZCARD', leased_key) >= CROWD
local claims = is_crowd and string.rep('0', 64) .. '1' or 1
local due, text, lease
local story = new_story(history)
for i = 1, #taken do
  local id = taken[i]
  if dues_taken[i] ~= due then
    due = dues_taken[i]
    text = whole(due)
    lease = new_lease(token, claims, fence, text, '-')
  end
  local found = place[i] and string.sub(ARGV[6], place[i], place[i]) or 'b'
  tell(story, 'claimed', '', id, text, found)
  leases[i] = lease
  held[2 * i - 1], held[2 * i] = id, lease
  deadlines[2 * i - 1], deadlines[2 * i] = deadline, id
end
local reply = hand_out(stamp, table.concat(misses, ' '), taken, leases, records)
reply[1] = paused and 'paused' or 'ok'

-- A full Redis lets a script run on if its first write is a removal, even an empty one. A claim
-- without jobs is remembered too, or its late original could claim jobs for nobody.
if #ARGV == HEAD and #taken > 0 then
  -- No job was named, so all are the first ones, and a range takes a third of the time.
  redis.call('ZREMRANGEBYRANK', due_key, 0, #taken - 1)
else
  redis.call('ZREM', due_key, '', unpack(taken))
end
if #taken > 0 then
  -- The types of these keys were not checked, and may be wrong. To try costs nothing if they are
  -- right.
  local fault = error_in(redis.pcall('ZADD', leased_key, unpack(deadlines)))
    or error_in(redis.pcall('HSET', lease_key, unpack(held)))
  if fault then
    redis.pcall('ZREM', leased_key, unpack(taken))
    for i, id in ipairs(taken) do
      redis.call('ZADD', due_key, dues_taken[i], id)
    end
    return fault
  end
end
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, table.concat(taken, ' '), 'fence',
  int(#taken > 0 and fence or fence - 1))
write_story(story, history_key, ARGV[3])
return reply
