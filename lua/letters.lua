-- letters: the dead letters of one job. Reads only.
--
-- KEYS  1 dead    keyfall:{app:module:biz/0}:dead
--       2 grave   keyfall:{app:module:biz/0}:grave
--       3 calls   keyfall:{app:module:biz/0}:calls
-- ARGV  1 id, 2 place, 3 limit: the most letters to read, the newest first, then the numbers of the
--       letters to read instead, if any
-- Reply {'ok', now µs, number, died, record, number, died, record, …}, the newest first, or in the
--       order of the given numbers; died in Unix ms; or {'stale', now µs, layout} if this ledger
--       has another layout
-- Holds: bounded by limit, and by some 4 MiB of records. The last sixteen letters of an id are
--       found by the id, older ones by their number.

local HEAD = 3
local REPLY_BYTES = 4 * 1024 * 1024
local dead_key, grave_key, calls_key = KEYS[1], KEYS[2], KEYS[3]
local id, place, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = int(now_us())

local refused = misplaced(redis.call('HGET', calls_key, 'layout'), place, now)
if refused then
  return refused
end

local numbers = {}
for i = HEAD + 1, #ARGV do
  numbers[#numbers + 1] = ARGV[i]
end
if #numbers == 0 then
  for number in string.gmatch(redis.call('HGET', grave_key, id) or '', '%d+') do
    table.insert(numbers, 1, number)
  end
end

local reply, bytes = {'ok', now}, 0
for _, number in ipairs(numbers) do
  if limit == 0 or bytes > REPLY_BYTES then
    break
  end
  local name = id .. ':' .. number
  local died, record = redis.call('ZSCORE', dead_key, name), redis.call('HGET', grave_key, name)
  if died and record then
    reply[#reply + 1] = number
    reply[#reply + 1] = died
    reply[#reply + 1] = record
    bytes = bytes + #record
    limit = limit - 1
  end
end
return reply
