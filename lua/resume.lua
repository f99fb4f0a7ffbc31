-- resume: ends a pause. What fell due meanwhile is claimed as soon as workers hear of it.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
--       2 lanes   keyfall:{app:module:biz/0}:lanes
-- ARGV  1 lane, 2 number, 3 wake channel, 4 kind (app:module:biz)
-- Reply {'ok', now µs, answers} or {'late', now µs}; answers, one word:
--       resumed   it is not paused any more, or was not
-- Holds: works while Redis is full. A kind that was resumed by name is not paused by a rule
--       that is older.

local calls_key, lanes_key = KEYS[1], KEYS[2]
local lane, number = ARGV[1], tonumber(ARGV[2])
local now, stamp = now_us()

local past, known = past_reply(calls_key, lane, number, stamp)
if past then
  return past
end

local answers = {}
answers[1] = 'resumed'
-- A full Redis lets a script run on if its first write is a removal: even one of nothing.
redis.call('HDEL', calls_key, '')
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply, 'paused', '0')
redis.pcall('PUBLISH', ARGV[3], 'resume ' .. ARGV[4])
return {'ok', stamp, reply}
