-- copy: begins to note the changes of a ledger, and notes those of its jobs that are there.
--
-- KEYS  1 due    keyfall:{app:module:biz/0}:due
--       2 lease  keyfall:{app:module:biz/0}:lease
--       3 calls  keyfall:{app:module:biz/0}:calls
--       4 lanes  keyfall:{app:module:biz/0}:lanes
-- ARGV  1 most: how many changes may wait, 2 version and 3 number: of the last copy of the ledger,
--       4 fence: the next fencing values are higher, 5 cursor: of the last call, `due 0` at first,
--       6 count: about how many jobs to note
-- Reply {'ok', now µs, cursor, version, noted}: the cursor for the next call, empty at the end;
--       the version of the changes that this call has noted, and how many there are
-- Holds: each job that is there during all the calls is noted, and may be noted twice. A claim
--       notes nothing, so jobs that run are looked for after those that wait. If too many changes
--       have ended the noting since the first call, nothing is noted. Refused while Redis is full.

local due_key, lease_key, calls_key, lanes_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local changes_key = string.sub(calls_key, 1, -6) .. 'changes'
local now, stamp = now_us()

local kept = redis.call('HMGET', calls_key, 'changes', 'fence')
local most, version, number = string.match(kept[1] or '', '^(%w+) (%d+) (%d+)$')
redis.call('ZCARD', changes_key)
if ARGV[5] ~= 'due 0' and not tonumber(most) then
  return {'ok', stamp, ARGV[5], tonumber(version or 0), 0}
end
version = math.max(now, tonumber(version or 0) + 1, tonumber(ARGV[2]) + 1)
number = int(math.max(tonumber(number or 0), tonumber(ARGV[3])))
local fence = math.max(tonumber(kept[2] or 0) or 0, tonumber(ARGV[4]))

local part, from = string.match(ARGV[5], '^(%a+) (%d+)$')
local scanned = part == 'due' and redis.call('ZSCAN', due_key, from, 'COUNT', ARGV[6])
  or redis.call('HSCAN', lease_key, from, 'COUNT', ARGV[6])
redis.call('HLEN', lease_key)

redis.call('HSET', calls_key, 'changes', ARGV[1] .. ' ' .. int(version) .. ' ' .. number)
if fence > 0 then
  redis.call('HSET', calls_key, 'fence', int(fence))
end
keep_for_good(calls_key, lanes_key)
local noted = 0
for i = 1, #scanned[2], 2 do
  if scanned[2][i] ~= PLACEHOLDER then
    redis.call('ZADD', changes_key, int(version), scanned[2][i])
    noted = noted + 1
  end
end
local cursor = part .. ' ' .. scanned[1]
if scanned[1] == '0' then
  cursor = part == 'due' and 'lease 0' or ''
end
return {'ok', stamp, cursor, int(version), noted}
