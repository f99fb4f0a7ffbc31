-- copied: removes changes that are in the copy.
--
-- KEYS  1 calls  keyfall:{app:module:biz/0}:calls
-- ARGV  1 number of the batch, then for each job: id, version that was read
-- Reply {'ok', now µs}
-- Holds: may be repeated, and be late: a job that has changed again stays. Works while Redis is
--       full.

local calls_key, batch = KEYS[1], tonumber(ARGV[1])
local changes_key = string.sub(calls_key, 1, -6) .. 'changes'
local _, stamp = now_us()

local most, version, number =
  string.match(redis.call('HGET', calls_key, 'changes') or '', '^(%d+) (%d+) (%d+)$')
-- The ids with the versions that they have: only those that were read go.
local copied, ids = {}, {}
for i = 2, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local versions = #ids > 0 and redis.call('ZMSCORE', changes_key, unpack(ids)) or {}
for i, id in ipairs(ids) do
  if versions[i] and tonumber(versions[i]) <= tonumber(ARGV[1 + 2 * i]) then
    copied[#copied + 1] = id
  end
end
-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('HDEL', calls_key, '')
if #copied > 0 then
  redis.call('ZREM', changes_key, unpack(copied))
end
if most and batch > tonumber(number) then
  redis.call('HSET', calls_key, 'changes', most .. ' ' .. version .. ' ' .. ARGV[1])
end
return {'ok', stamp}
