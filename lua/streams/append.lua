-- append: adds an entry to a stream. Where groups acknowledge, each knows what a trim may have taken,
-- whoever trims. With a lease there is a note that the entry was written, so that a server that
-- forgets one forgets the other.
--
-- KEYS  1 stream, 2.. written of each known group   orders, orders:closers:written
-- ARGV  1 about how many entries are kept, 2 lease of the entry, which is noted in the second key,
--       or nothing, 3 how many groups are known, 4.. their names, then names and values of the
--       fields of the entry
-- Reply {id, groups}   groups: none, or all that there are, if some are not known: nothing is
--                      trimmed then
--       nil            nothing is written: with a lease, the notes must be tied to a group first
-- Holds: what a trim may have taken is known to all groups for ever: all that is older than what it
--       left.

local stream, lease, known = KEYS[1], ARGV[2], tonumber(ARGV[3])

-- Fails before anything is written, if one of these keys is no hash.
local tied = {}
for at = 2, #KEYS do
  if redis.call('HGET', KEYS[at], 'consumer') then
    tied[#tied + 1] = KEYS[at]
  end
end
if lease ~= '' and (tied[1] ~= KEYS[2] or redis.call('EXISTS', stream) == 0) then
  return false
end

local id = redis.call('XADD', stream, '*', unpack(ARGV, 4 + known))
if lease ~= '' then
  redis.call('HSET', KEYS[2], id, lease)
end

local is_known = {}
for at = 4, 3 + known do
  is_known[ARGV[at]] = true
end
local groups, are_known = {}, true
for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  groups[#groups + 1] = row[2]
  are_known = are_known and is_known[row[2]]
end
if not are_known then
  return {id, groups}
end
if redis.call('XTRIM', stream, 'MAXLEN', '~', ARGV[1]) > 0 then
  local left = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)
  for _, written in ipairs(tied) do
    redis.call('HSET', written, 'oldest', left[1][1])
  end
end
return {id, {}}
