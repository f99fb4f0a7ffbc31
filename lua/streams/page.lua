-- page: the ids of the entries behind a given one, each with its lease if its job has not ended.
--
-- KEYS  1 stream, 2 written   orders, orders:closers:written
-- ARGV  1 group, 2 id of the entry before the first one, 3 the most entries
-- Reply {id, lease, id, lease, ..} in order; a lease is empty if the entry has none or needs no
--       more looks: it was read, is not pending, and no note says that its job has not ended
-- Holds: reads only.

local stream, written, group = KEYS[1], KEYS[2], ARGV[1]

local entries = redis.call('XRANGE', stream, '(' .. ARGV[2], '+', 'COUNT', ARGV[3])
if #entries == 0 then
  return {}
end

-- The value of a field in a reply of names and values in turn.
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
