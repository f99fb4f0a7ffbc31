-- touch: writes the remembered reply of a call once more, if it is the last call of its lane. A
-- server that has this write has the writes of the call, too.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
-- ARGV  1 lane, 2 number
-- Reply {'ok', now µs, answers}; answers, one word:
--       present  this data set holds the call
--       absent   it does not: it is older than the call, or belongs to another server
-- Holds: works while Redis is full.

local calls_key = KEYS[1]
local lane, number = ARGV[1], ARGV[2]
local _, stamp = now_us()

local answers = {}
local last = redis.call('HGET', calls_key, lane)
if last and string.match(last, '^(%d+) ') == number then
  answers[1] = 'present'
  -- A full Redis lets a script run on if its first write is a removal, even an empty one.
  redis.call('HDEL', calls_key, '')
  redis.call('HSET', calls_key, lane, last)
else
  answers[1] = 'absent'
end
return {'ok', stamp, answers[1]}
