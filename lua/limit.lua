-- limit: sets or removes the limit of a ledger.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
--       2 lanes   keyfall:{app:module:biz/0}:lanes
--       3 history keyfall:{app:module:biz/0}:history
-- ARGV  1 lane, 2 number, 3 who, 4 wake channel, 5 subject (app:module:biz/0), 6 gap: the µs
--       between two starts in the long run, zero without a rate, 7 burst: how many jobs may start
--       at once, 8 most: how many leases there may be at once, zero for any number, 9 rule: the
--       time at which it was set, Unix ms, a blank, and what people are told of it. Gap and most
--       are zero to remove the limit
-- Reply {'ok', now µs, answers} or {'late', now µs}; answers, one word:
--       limited  this limit holds from now on, or none
--       kept     a newer limit holds already: nothing was done
-- Holds: while Redis is full, refused before anything is written. Starts before a change count
--       after it as well; a hold ends with it. A removed limit leaves its time, so that an older
--       one does not come back.

local calls_key, lanes_key, history_key = KEYS[1], KEYS[2], KEYS[3]
local lane, number = ARGV[1], tonumber(ARGV[2])
local now, stamp = now_us()

local past, known, history, _, before = past_reply(calls_key, lane, number, stamp)
if past then
  return past
end

local answers = {}
local held = read_limit(before) or {full = now, rest = ' 0 '}

local function set_at(rest)
  return tonumber(string.match(rest, '^ (%d+)')) or 0
end

if set_at(held.rest) > set_at(' ' .. ARGV[9]) then
  answers[1] = 'kept'
  remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, answers[1])
  return {'ok', stamp, answers[1]}
end
local limit = {
  full = held.full,
  gap = tonumber(ARGV[6]),
  burst = tonumber(ARGV[7]),
  most = tonumber(ARGV[8]),
  hold = 0,
  rest = ' ' .. ARGV[9],
}
local story = new_story(history)
tell_of_kind(story, limit.gap + limit.most > 0 and 'limited' or 'unlimited')
answers[1] = 'limited'
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, answers[1], 'limit', write_limit(limit))
keep_for_good(calls_key, lanes_key)
-- There may be room by now for jobs that nobody announces any more.
redis.pcall('PUBLISH', ARGV[4], 'flood ' .. ARGV[5])
write_story(story, history_key, ARGV[3])
return {'ok', stamp, answers[1]}
