-- append: adds an entry to a stream, and trims the stream. Every group that acknowledges knows what
-- a trim may have removed, whichever caller trims. An entry with a lease is noted as written in the
-- same step, so that a server that loses the entry loses its note, too.
--
-- KEYS  1 stream, 2.. written of each known group   orders, orders:closers:written
-- ARGV  1 about how many entries the stream keeps, 2 lease of the entry, which is noted in the
--       second key, or empty, 3 number of the known groups, 4.. their names, then names and values
--       of the fields of the entry
-- Reply {id, groups}   groups: empty; or all groups of the stream, if some are not known, and then
--       nothing is trimmed
--       nil            nothing is written: an entry with a lease needs notes that are tied to a
--                      group
-- Holds: all groups know for ever what a trim may have removed: every entry older than the first
--       one that it left.

local stream, lease, known = KEYS[1], ARGV[2], tonumber(ARGV[3])

-- These reads also fail if a key is not a hash, before anything is written.
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
