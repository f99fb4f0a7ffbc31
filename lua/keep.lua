-- keep: sets how many entries the history of a kind keeps; with none, its entries are deleted.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
--       2 lanes   keyfall:{app:module:biz/0}:lanes
--       3 history keyfall:{app:module:biz/0}:history
-- ARGV  1 lane, 2 number, 3 who, 4 entries
-- Reply {'ok', now µs, answers} or {'late', now µs}; answers, one word:
--       kept   the history keeps this many entries from now on
-- Holds: works while Redis is full. A history that is too long is cut with its next entry.

local calls_key, lanes_key, history_key = KEYS[1], KEYS[2], KEYS[3]
local lane, number = ARGV[1], tonumber(ARGV[2])
local now, stamp = now_us()

local past, known = past_reply(calls_key, lane, number, stamp)
if past then
  return past
end

local answers = {}
answers[1] = 'kept'
-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('HDEL', calls_key, '')
if ARGV[4] == '0' then
  redis.call('XADD', history_key, 'MAXLEN', 0, '*', 'what', 'ended')
end
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply, 'history', ARGV[4])
keep_for_good(calls_key, lanes_key)
return {'ok', stamp, reply}
