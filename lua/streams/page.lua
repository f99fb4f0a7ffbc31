-- page: the entries that follow another one, by id and lease alone, and whether their jobs have
-- ended.
--
-- KEYS  1 stream, 2 written   orders, orders:closers:written
-- ARGV  1 group, 2 the entry that they follow, 3 how many, at the most
-- Reply {id, lease, id, lease, ..}   in their order
--       lease: nothing if the entry has none, or is not to be looked at any more: it was read, is
--              not pending, and no note says that its job has not ended
-- Holds: nothing is written.

local stream, written, group = KEYS[1], KEYS[2], ARGV[1]

local entries = redis.call('XRANGE', stream, '(' .. ARGV[2], '+', 'COUNT', ARGV[3])
if #entries == 0 then
  return {}
end

-- A field of a reply that is names and values, one after the other.
local function field(row, name)
  for at = 1, #row, 2 do
    if row[at] == name then
      return row[at + 1]
    end
  end
end

-- Ids are two numbers of up to 64 bits, which Lua's numbers cannot hold.
local function is_below(one, other)
  local ms, number = string.match(one, '(%d+)%-(%d+)')
  local other_ms, other_number = string.match(other, '(%d+)%-(%d+)')
  if ms == other_ms then
    ms, other_ms = number, other_number
  end
  if #ms ~= #other_ms then
    return #ms < #other_ms
  end
  return ms < other_ms
end

local last
for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  if field(row, 'name') == group then
    last = field(row, 'last-delivered-id')
  end
end

local ids, pending = {}, {}
for at, entry in ipairs(entries) do
  ids[at] = entry[1]
end
if last then
  local rows = redis.call('XPENDING', stream, group, ids[1], ids[#ids], #ids)
  for _, row in ipairs(rows) do
    pending[row[1]] = true
  end
end
local notes = redis.call('HMGET', written, unpack(ids))

local reply = {}
for at, entry in ipairs(entries) do
  local id, lease = entry[1], field(entry[2], 'lease') or ''
  local was_read = last and not is_below(last, id)
  if was_read and not pending[id] and notes[at] ~= lease then
    lease = ''
  end
  reply[#reply + 1] = id
  reply[#reply + 1] = lease
end
return reply
