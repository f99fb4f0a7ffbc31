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

-- Members of ranks from `first` to `beyond`, without it, that follow the page before; `higher` is
-- how much higher their scores are than those of the page.
local function part(first, beyond, higher)
  if score ~= '' then
    local from = higher > 0 and int(tonumber(score) + higher) or score
    local at, there = place_of(set, from, member)
    first, beyond = down and first or at + (there and 1 or 0), down and at or beyond
  end
  local ranked = {}
  if first >= beyond then
    return ranked
  elseif down then
    local from_end = redis.call('ZCARD', set) - beyond
    local most = math.min(looks, beyond - first)
    ranked = redis.call('ZREVRANGE', set, from_end, from_end + most - 1, 'WITHSCORES')
  else
    ranked = redis.call('ZRANGE', set, first, math.min(first + looks, beyond) - 1, 'WITHSCORES')
  end
  for i = 2, higher > 0 and #ranked or 0, 2 do
    ranked[i] = int(tonumber(ranked[i]) - higher)
  end
  return ranked
end

-- Two parts in one order.
local function merged(one, other)
  local all, i, j = {}, 1, 1
  while #all < 2 * looks and (one[i] or other[j]) do
    local a, b = tonumber(one[i + 1] or nil), tonumber(other[j + 1] or nil)
    local is_first = a and b and (a < b or a == b and comes_before(one[i], other[j]))
    if a and b and down then
      is_first = not is_first
    end
    if a and (not b or is_first) then
      all[#all + 1], all[#all + 2], i = one[i], one[i + 1], i + 2
    else
      all[#all + 1], all[#all + 2], j = other[j], other[j + 1], j + 2
    end
  end
  return all
end

local size = members(set)
local aside = set == due_key and aside_count(set) or 0
local ranked = part(state == 'running' and redis.call('ZCOUNT', set, '-inf', int(now_ms)) or 0,
  size - aside, 0)
if aside > 0 then
  ranked = merged(ranked, part(size - aside, size, ASIDE))
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
