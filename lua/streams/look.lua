-- look: the state of some entries in the group of an acknowledged stream.
--
-- KEYS  1 stream, 2 written   orders, orders:closers:written
-- ARGV  1 group, 2 the most pending entries to look at, then for each entry, by id: id, lease, and
--       1 to look for the entry even behind an unread one
-- Reply nil if there is no such group; else a state for each entry, without the last entries if too
--       many are pending to tell:
--       {'unread'}                no consumer has read it; it is there, as far as was looked
--       {'read', consumer, ms}    this consumer has read it, and not acknowledged it for so long
--       {'acknowledged'}          read and not pending; its note proves that it was written for
--                                 this group, and it is there, or was deleted and not trimmed
--       {'unproven'}              nothing proves that a consumer has read it, and none will
-- Holds: an unproven entry stays unproven, because its note is deleted.

local stream, written, group = KEYS[1], KEYS[2], ARGV[1]

if redis.call('EXISTS', stream) == 0 then
  return false
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
if not last then
  return false
end

local most = tonumber(ARGV[2])
local pending, known_to = {}, nil
local rows = redis.call('XPENDING', stream, group, ARGV[3], ARGV[#ARGV - 2], most)
for _, row in ipairs(rows) do
  pending[row[1]] = row
end
if #rows == most then
  known_to = rows[most][1]
end

local asked = {'consumer', 'oldest'}
for at = 3, #ARGV, 3 do
  asked[#asked + 1] = ARGV[at]
end
local notes = redis.call('HMGET', written, unpack(asked))
local tie, oldest = notes[1], notes[2]

local function lease_at(id)
  local found = redis.call('XRANGE', stream, id, id)[1]
  return found and (field(found[2], 'lease') or '')
end

-- Whether the notes belong to this group: a group that another program made may begin behind
-- entries that no consumer has read.
local tied
local function is_tied()
  if tied == nil then
    tied = false
    for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
      tied = tied or field(row, 'name') == tie
    end
  end
  return tied
end

-- Whether an absent entry can only have been deleted by its id: no trim has come so far, and its id
-- is not above the largest deleted id, which some servers keep.
local ANY = '18446744073709551615-18446744073709551615'
local deleted_to
local function is_deleted(id)
  deleted_to = deleted_to
    or field(redis.call('XINFO', 'STREAM', stream), 'max-deleted-entry-id')
    or ANY
  return not is_below(deleted_to, id) and not (oldest and is_below(id, oldest))
end

-- Entries are judged in order: if one is there, no later one was trimmed.
local is_trimmed = true

local function standing(id, lease, note, is_sought)
  if note and note ~= lease then
    return {'unproven'}
  elseif pending[id] then
    return {'read', pending[id][2], pending[id][3]}
  elseif is_below(last, id) then
    if not is_sought and not is_trimmed then
      return {'unread'}
    end
    local is_there = lease_at(id) == lease
    is_trimmed = is_trimmed and not is_there
    return {is_there and 'unread' or 'unproven'}
  end
  local is_proved = false
  if note and is_tied() then
    local found = lease_at(id)
    is_proved = found == lease or not found and is_deleted(id)
  end
  return {is_proved and 'acknowledged' or 'unproven'}
end

local reply = {}
for at = 3, #ARGV, 3 do
  local id, lease, note = ARGV[at], ARGV[at + 1], notes[#reply + 3]
  if known_to and is_below(known_to, id) then
    break
  end
  local answer = standing(id, lease, note, ARGV[at + 2] == '1')
  if answer[1] == 'unproven' and note == lease then
    redis.call('HDEL', written, id)
  end
  reply[#reply + 1] = answer
end
return reply
