-- trim: keeps the dead letters within their limits when no burial does so.
--
-- KEYS  1 dead    keyfall:{app:module:biz/0}:dead
--       2 grave   keyfall:{app:module:biz/0}:grave
--       3 stats   keyfall:{app:module:biz/0}:stats
-- ARGV  1 most dead letters, 2 most ms that a dead letter is kept, 3 limit: about how many letters
--       one call removes
-- Reply {'ok', now µs, trimmed}: how many letters were removed
-- Holds: works while Redis is full. Takes no lane: a repeat trims the rest.

local dead_key, grave_key, stats_key = KEYS[1], KEYS[2], KEYS[3]
local now, stamp = now_us()
redis.call('ZCARD', dead_key)

-- A full Redis lets a script run on if its first write is a removal, even an empty one. This one
-- also shows whether the records are of the right type. The counter comes next, because it may be
-- damaged.
redis.call('HDEL', grave_key, '')
redis.call('HINCRBY', stats_key, 'trimmed', 0)
local trimmed = trim(dead_key, grave_key, tonumber(ARGV[1]), tonumber(ARGV[2]),
  math.floor(now / 1000), tonumber(ARGV[3]))
redis.call('HINCRBY', stats_key, 'trimmed', trimmed)
return {'ok', stamp, int(trimmed)}
