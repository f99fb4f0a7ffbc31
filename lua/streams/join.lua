-- join: creates the group of an acknowledged stream, if there is none, and ties the notes of
-- written entries to it: the notes name a consumer that never reads, which is in the group as long
-- as the group exists.
--
-- KEYS  1 stream, 2 written, 3 settled   orders, orders:closers:written, orders:closers:settled
-- ARGV  1 group, 2 name of the new consumer, if the notes are not tied yet
-- Reply {'ok'}
-- Holds: a new group begins at the first entry that was not settled. Notes of an earlier group or
--       stream of this name are deleted; the first entries that the group has not read are noted
--       anew.

local stream, written, group = KEYS[1], KEYS[2], ARGV[1]

-- The most entries that are noted anew; later ones are delivered once more.
local MOST = 1000

-- The value of a field in a reply of names and values in turn.
local function field(row, name)
  for at = 1, #row, 2 do
    if row[at] == name then
      return row[at + 1]
    end
  end
end

local function find(rows, name)
  for _, row in ipairs(rows) do
    if row[2] == name then
      return row
    end
  end
end

local begin, tie = '0', redis.call('HGET', written, 'consumer')
local known
if redis.call('EXISTS', stream) == 1 then
  known = find(redis.call('XINFO', 'GROUPS', stream), group)
  local settled = redis.call('GET', KEYS[3])
  -- A foreign value is not an id; then all entries are looked at again.
  begin = settled and string.match(settled, '^%d+%-%d+$') or begin
else
  redis.call('DEL', KEYS[3])
end
if known and tie and find(redis.call('XINFO', 'CONSUMERS', stream, group), tie) then
  return {'ok'}
end
if known then
  begin = field(known, 'last-delivered-id')
else
  redis.call('XGROUP', 'CREATE', stream, group, begin, 'MKSTREAM')
end
redis.call('DEL', written)
redis.call('HSET', written, 'consumer', ARGV[2])
redis.call('XGROUP', 'CREATECONSUMER', stream, group, ARGV[2])
for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. begin, '+', 'COUNT', MOST)) do
  local lease = field(entry[2], 'lease')
  if lease then
    redis.call('HSET', written, entry[1], lease)
  end
end
return {'ok'}
