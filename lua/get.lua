-- get: one job as the ledger sees it, or its latest dead letter. Reads only.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 shadow   keyfall:{app:module:biz/0}:shadow
--       3 leased   keyfall:{app:module:biz/0}:leased
--       4 lease    keyfall:{app:module:biz/0}:lease
--       5 next     keyfall:{app:module:biz/0}:next
--       6 dead     keyfall:{app:module:biz/0}:dead
--       7 grave    keyfall:{app:module:biz/0}:grave
--       8 calls    keyfall:{app:module:biz/0}:calls
-- ARGV  1 id, 2 place
-- Reply one of
--       {'pending', now µs, due, record}
--       {'leased', now µs, deadline, lease, record, successor}   successor: `due record` or ''
--       {'dead', now µs, died, number, record}
--       {'absent', now µs}
--       {'elsewhere', now µs}      the job belongs to another ledger by now
--       {'stale', now µs, layout}  this ledger has another layout
--       times in Unix ms
-- Holds: a dead letter is shown only if no job of its name is pending or leased.

local due_key, shadow_key, leased_key, lease_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local next_key, dead_key, grave_key, calls_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local id, place = ARGV[1], ARGV[2]
local now = int(now_us())

local refused = misplaced(redis.call('HGET', calls_key, 'layout'), place, now)
if refused then
  return refused
end

local lease = redis.call('HGET', lease_key, id)
if lease then
  return {'leased', now, redis.call('ZSCORE', leased_key, id) or '0', lease,
    redis.call('HGET', shadow_key, id) or '', redis.call('HGET', next_key, id) or ''}
end
if is_old(place) then
  return {'elsewhere', now}
end
local due = redis.call('ZSCORE', due_key, id)
if due then
  return {'pending', now, due_text(due), redis.call('HGET', shadow_key, id) or ''}
end
local numbers = redis.call('HGET', grave_key, id)
if numbers then
  local number = string.match(numbers, '(%d+)$')
  local name = id .. ':' .. number
  return {'dead', now, redis.call('ZSCORE', dead_key, name) or '0', number,
    redis.call('HGET', grave_key, name) or ''}
end
return {'absent', now}
