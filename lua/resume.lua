-- resume: ends a pause. Jobs that fell due meanwhile are claimed as soon as workers hear of it.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
--       2 lanes   keyfall:{app:module:biz/0}:lanes
--       3 history keyfall:{app:module:biz/0}:history
-- ARGV  1 lane, 2 number, 3 who, 4 wake channel, 5 kind (app:module:biz), 6 turn: its number among
--       the pauses and resumes of several servers, or 0
-- Reply {'ok', now µs, answers} or {'late', now µs}; answers, one word:
--       resumed   the kind is not paused; or it was paused with a larger turn, and stays paused
-- Holds: works while Redis is full. An older rule does not pause a kind that was resumed by name.

local calls_key, lanes_key, history_key = KEYS[1], KEYS[2], KEYS[3]
local lane, number = ARGV[1], tonumber(ARGV[2])
local now, stamp = now_us()

local past, known, history = past_reply(calls_key, lane, number, stamp)
if past then
  return past
end

local answers = {}
local story = new_story(history)
if is_past_turn(calls_key, ARGV[6]) then
  return {'ok', stamp, 'resumed'}
end
answers[1] = 'resumed'
if is_paused(redis.call('HGET', calls_key, 'paused')) then
  tell_of_kind(story, 'resumed')
end
-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('HDEL', calls_key, '')
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply, 'paused', '0')
keep_for_good(calls_key, lanes_key)
take_turn(calls_key, ARGV[6])
redis.pcall('PUBLISH', ARGV[4], 'resume ' .. ARGV[5])
write_story(story, history_key, ARGV[3])
return {'ok', stamp, reply}
