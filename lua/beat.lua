-- beat: the heartbeat of an instance; it returns the live instances.
--
-- KEYS  1 instances   keyfall:instances
-- ARGV  1 id, 2 silence ms: the age at which an instance counts as gone, 3 room: for each of its
--       routes, in order, `1` if it can run another job, else `0`; then `/` and, with commas
--       between, how many jobs of each can start; behind that `h` if it hears events, else `d`,
--       4 description: one line of JSON, 5 pulse channel, 6 wake channel
-- Reply {'ok', now µs, id, age ms, room, id, age ms, room, …}: the instances that live, this
--       one included.
-- Holds: works while Redis is full. Instances that are gone for long are forgotten, a few at a
--       time.

local instances_key = KEYS[1]
local id, silence = ARGV[1], tonumber(ARGV[2])
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)

-- How many times `silence` the row of an absent instance is kept: it may only have been stopped for
-- a while.
local MEMORY = 20

-- The most instances that are forgotten at once.
local FORGOTTEN = 64

-- The age of a heartbeat; never negative, although the clock may have been set back since.
local function age_of(beat)
  return math.abs(now_ms - beat)
end

local forgotten, is_new = {}, true
local reply = {'ok', stamp, id, '0', ARGV[3]}
local all = redis.call('HGETALL', instances_key)
for i = 1, #all, 2 do
  local beat, room = string.match(all[i + 1], '^(%d+) (%S+) ')
  local age = beat and age_of(tonumber(beat)) or math.huge
  if all[i] == id then
    is_new = age > silence
  elseif age <= silence then
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = int(age)
    reply[#reply + 1] = room
  elseif age > silence * MEMORY and #forgotten < FORGOTTEN then
    forgotten[#forgotten + 1] = all[i]
  end
end

-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('HDEL', instances_key, '', unpack(forgotten))
redis.call('HSET', instances_key, id, int(now_ms) .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.pcall('PUBLISH', ARGV[5], 'beat')
if is_new then
  redis.pcall('PUBLISH', ARGV[6], 'instances')
end
return reply
