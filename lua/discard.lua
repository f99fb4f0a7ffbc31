-- discard: deletes dead letters for good.
--
-- KEYS  1 dead    keyfall:{app:module:biz/0}:dead
--       2 grave   keyfall:{app:module:biz/0}:grave
--       3 stats   keyfall:{app:module:biz/0}:stats
--       4 calls   keyfall:{app:module:biz/0}:calls
--       5 lanes   keyfall:{app:module:biz/0}:lanes
--       6 history keyfall:{app:module:biz/0}:history
-- ARGV  1 lane, 2 number, 3 who, 4 place, then for each item: id, number of the letter
-- Reply {'ok', now µs, answers}, {'late', now µs}, or {'stale', now µs, layout} if this ledger has
--       another layout; answers, separated by blanks:
--       deleted   the letter is gone
--       absent    no such letter
-- Holds: works while Redis is full. A job of the same name, pending or running, is not touched.

local HEAD, WIDTH = 4, 2
local dead_key, grave_key, stats_key, calls_key, lanes_key, history_key =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local lane, number, place = ARGV[1], tonumber(ARGV[2]), ARGV[4]
local now, stamp = now_us()

local past, known, history = past_reply(calls_key, lane, number, stamp, place)
if past then
  return past
end

local names = {}
for i = 1, (#ARGV - HEAD) / WIDTH do
  local at = HEAD + (i - 1) * WIDTH
  names[i] = ARGV[at + 1] .. ':' .. ARGV[at + 2]
end
local deaths = redis.call('ZMSCORE', dead_key, unpack(names))

local answers, gone, done = {}, {}, {}
local story = new_story(history)
for i, name in ipairs(names) do
  if deaths[i] and not done[name] then
    answers[i] = 'deleted'
    gone[#gone + 1] = name
    local at = HEAD + (i - 1) * WIDTH
    tell(story, 'deleted', '', ARGV[at + 1], ARGV[at + 2], '-')
  else
    answers[i] = 'absent'
  end
  done[name] = true
end

-- A full Redis lets a script run on if its first write is a removal, even an empty one. This one
-- also shows whether the records are of the right type.
redis.call('HDEL', grave_key, '')
local _, fault = raise(stats_key, {deleted = at_least_one(#gone)})
if fault then
  return fault
end
for _, name in ipairs(gone) do
  unbury(dead_key, grave_key, name)
end
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply)
write_story(story, history_key, ARGV[3])
return {'ok', stamp, reply}
