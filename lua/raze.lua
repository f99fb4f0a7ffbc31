-- raze: removes an empty ledger, with all its keys.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 leased   keyfall:{app:module:biz/0}:leased
--       3 dead     keyfall:{app:module:biz/0}:dead
--       4 lanes    keyfall:{app:module:biz/0}:lanes
--       5 adopted  keyfall:{app:module:biz/0}:adopted
--       6 shadow   keyfall:{app:module:biz/0}:shadow
--       7 lease    keyfall:{app:module:biz/0}:lease
--       8 next     keyfall:{app:module:biz/0}:next
--       9 grave    keyfall:{app:module:biz/0}:grave
--      10 stats    keyfall:{app:module:biz/0}:stats
--      11 calls    keyfall:{app:module:biz/0}:calls
--      12 leaving  keyfall:{app:module:biz/0}:leaving
--      13 history  keyfall:{app:module:biz/0}:history
-- ARGV  1 place
-- Reply {'ok', now µs, held}, or {'stale', now µs, layout} if this ledger has another layout; held
--       is the number of jobs, of letters, of adopted keys that are still to expire, and of records
--       and changes that wait; unless it is zero, the ledger is unchanged
-- Holds: may be repeated, and be late. Works while Redis is full. If the ledger is paused or was
--       called in the last hour, `calls` and `lanes` stay for two hours: they hold the pause, the
--       largest fencing value and the memory of calls. A share of a limit goes.

local lanes_key, calls_key = KEYS[4], KEYS[11]
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)

local refused = misplaced(redis.call('HGET', calls_key, 'layout'), ARGV[1], stamp)
if refused then
  return refused
end
local held = redis.call('ZCOUNT', KEYS[5], '(' .. int(now_ms), '(inf')
for _, set in ipairs({KEYS[1], KEYS[2], KEYS[3]}) do
  held = held + members(set)
end
for _, hash in ipairs({KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[12]}) do
  held = held + fields(hash)
end
-- Records for the archive and changes for the copy wait beside the ledger; see `lib/archive.lua` and
-- `lib/changes.lua`.
local start = string.sub(KEYS[1], 1, -4)
for name, command in pairs({ended = 'LLEN', died = 'LLEN', changes = 'ZCARD'}) do
  -- A user without the right to look has no archive.
  local waiting = redis.pcall(command, start .. name)
  held = held + (type(waiting) == 'number' and waiting or 0)
end
-- Changes that were too many to wait are not copied yet, either.
local copied = redis.call('HMGET', calls_key, 'copy', 'changes')
if string.match(copied[1] or '', '^%d') and string.match(copied[2] or '', '^over ') then
  held = held + 1
end
redis.call('HLEN', KEYS[10])
if held > 0 then
  return {'ok', stamp, held}
end

local paused = is_paused(redis.call('HGET', calls_key, 'paused'))
local is_remembered = paused or last_call(calls_key, now) > now_ms - LANE_MEMORY_MS
for i, key in ipairs(KEYS) do
  if not is_remembered or i ~= 4 and i ~= 11 then
    redis.call('DEL', key)
  end
end
-- The keys of groups exist only while the kind has some; see `lib/groups.lua`.
redis.pcall('DEL', start .. 'groups', start .. 'turns', start .. 'rates', start .. 'shares')
if is_remembered then
  redis.call('HDEL', calls_key, 'layout', 'history', 'batch', 'unlisted', 'archive', 'waiting',
    'copy', 'changes', PLACEHOLDER)
  -- Others get the share of a ledger that is gone; see `lib/share.lua`.
  if string.find(redis.call('HGET', calls_key, 'limit') or '', '\n~', 1, true) then
    redis.call('HDEL', calls_key, 'limit')
  end
  redis.pcall('ZREM', lanes_key, PLACEHOLDER)
  keep_for_a_while(now_ms, calls_key, lanes_key)
end
return {'ok', stamp, 0}
