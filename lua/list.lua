-- list: a page of the jobs in one state. Reads only.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 shadow   keyfall:{app:module:biz/0}:shadow
--       3 leased   keyfall:{app:module:biz/0}:leased
--       4 lease    keyfall:{app:module:biz/0}:lease
--       5 next     keyfall:{app:module:biz/0}:next
--       6 dead     keyfall:{app:module:biz/0}:dead
--       7 grave    keyfall:{app:module:biz/0}:grave
-- ARGV  1 state (pending | leased | running | lapsed | dead), 2 order (up | down), 3 limit: the
--       most jobs, 4 looks: the most members to look at, 5 records: one to read records, leases and
--       successors, else zero, 6 until: the highest score, Unix ms, 7 prefix of the ids, 8 score,
--       9 member: the end of the page before; both empty for the first page
-- Reply {'ok', now µs, looked, score, member, member, score, member, score, …}; `looked` is the
--       number of members that were looked at; the first score and member are the end of this page,
--       behind which the next one begins, and are empty if there is none. With records, each job
--       has five values: member, score, lease, record, due time of the successor; absent values are
--       empty.
--       The member is the id, or the `id:number` of a dead letter; the score is the due time, the
--       deadline, or the time of death, Unix ms
-- Holds: in order of score and member. Bounded by looks and by some 4 MiB of records, so a page can
--       be short or even empty, and still have a next one.

local due_key, shadow_key, leased_key, lease_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local next_key, dead_key, grave_key = KEYS[5], KEYS[6], KEYS[7]
local state, down = ARGV[1], ARGV[2] == 'down'
local limit, looks, wants_records = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'
local last, prefix, score, member = tonumber(ARGV[6]), ARGV[7], ARGV[8], ARGV[9]
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)

local set = state == 'pending' and due_key or state == 'dead' and dead_key or leased_key
local least = state == 'running' and now_ms + 1 or -math.huge
if state == 'lapsed' then
  last = math.min(last, now_ms)
end

local begin
if score ~= '' then
  local place, there = place_of(set, score, member)
  begin = down and place - 1 or place + (there and 1 or 0)
elseif down then
  begin = members(set) - 1
else
  begin = state == 'running' and redis.call('ZCOUNT', set, '-inf', int(now_ms)) or 0
end

local ranked = {}
if down and begin >= 0 then
  local from_end = redis.call('ZCARD', set) - 1 - begin
  ranked = redis.call('ZREVRANGE', set, from_end, from_end + looks - 1, 'WITHSCORES')
elseif not down then
  ranked = redis.call('ZRANGE', set, begin, begin + looks - 1, 'WITHSCORES')
end

local members, scores, place = {}, {}, {}
local looked, ended = 0, #ranked < 2 * looks
for i = 1, #ranked, 2 do
  if #members == limit then
    ended = false
    break
  elseif tonumber(ranked[i + 1]) > last then
    ended = not down
    if ended then
      break
    end
  elseif tonumber(ranked[i + 1]) >= least and string.sub(ranked[i], 1, #prefix) == prefix then
    members[#members + 1] = ranked[i]
    scores[#members] = ranked[i + 1]
    place[#members] = (i + 1) / 2
  end
  looked = (i + 1) / 2
end

local records, leases, successors = {}, {}, {}
if wants_records then
  records = read_records(state == 'dead' and grave_key or shadow_key, members, REPLY_BYTES)
  if #records < #members then
    ended = false
    looked = place[#records]
  end
  if set == leased_key and #records > 0 then
    leases = redis.call('HMGET', lease_key, unpack(members, 1, #records))
    successors = redis.call('HMGET', next_key, unpack(members, 1, #records))
  end
end

local reply = {'ok', stamp, int(looked), '', ''}
if not ended then
  reply[4] = ranked[2 * looked]
  reply[5] = ranked[2 * looked - 1]
end
for i = 1, wants_records and #records or #members do
  reply[#reply + 1] = members[i]
  reply[#reply + 1] = scores[i]
  if wants_records then
    reply[#reply + 1] = leases[i] or ''
    reply[#reply + 1] = records[i]
    reply[#reply + 1] = successors[i] and string.match(successors[i], '^%d*') or ''
  end
end
return reply
