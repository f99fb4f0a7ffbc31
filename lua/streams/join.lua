-- join: makes the group of an acknowledged stream, if there is none, and ties the notes of what was
-- written to it: a consumer that never reads, with a name of its own, is in the group as long as the
-- group lives.
--
-- KEYS  1 stream, 2 written, 3 settled   orders, orders:closers:written, orders:closers:settled
-- ARGV  1 group, 2 name of that consumer, if there is none yet
-- Reply {'ok'}
-- Holds: a group begins where entries are that were not settled. Notes that belong to another group,
--       or to another stream of this name, are gone.

local stream, written, group = KEYS[1], KEYS[2], ARGV[1]

local function is_among(rows, name)
  for _, row in ipairs(rows) do
    if row[2] == name then
      return true
    end
  end
  return false
end

local begin, tie = '0', redis.call('HGET', written, 'consumer')
local groups = {}
if redis.call('EXISTS', stream) == 1 then
  groups = redis.call('XINFO', 'GROUPS', stream)
  local settled = redis.call('GET', KEYS[3])
  -- Somebody else put there what is no id, and all is looked at again.
  begin = settled and string.match(settled, '^%d+%-%d+$') or begin
else
  redis.call('DEL', KEYS[3])
end
local is_tied = false
if is_among(groups, group) then
  is_tied = tie and is_among(redis.call('XINFO', 'CONSUMERS', stream, group), tie)
else
  redis.call('XGROUP', 'CREATE', stream, group, begin, 'MKSTREAM')
end
if not is_tied then
  if tie then
    redis.call('DEL', written)
  end
  redis.call('HSET', written, 'consumer', ARGV[2])
  redis.call('XGROUP', 'CREATECONSUMER', stream, group, ARGV[2])
end
return {'ok'}
