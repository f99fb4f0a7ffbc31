-- changes: reads the jobs that changed longest ago, as they are now, for a copy.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 shadow   keyfall:{app:module:biz/0}:shadow
--       3 lease    keyfall:{app:module:biz/0}:lease
--       4 next     keyfall:{app:module:biz/0}:next
--       5 calls    keyfall:{app:module:biz/0}:calls
-- ARGV  1 limit: the most jobs, 2 bytes: about how many bytes of them, then ids of jobs that are
--       asked for instead of those that have changed
-- Reply {'ok', now µs, rule, changes, layout, fence, waiting, id, version, due, record, id, …}: the
--       fields `copy`, `changes`, `layout` and `fence` of `calls`, empty if they are missing; how
--       many jobs wait; then the jobs. One that will not run any more has no due time, and an empty
--       record. A job that is asked for has the version 0 if its changes are copied.
-- Holds: only reads. A job that runs is as it would be after its lease has lapsed: its successor
--       takes its place, and if it was cancelled, it has ended.

local due_key, shadow_key, lease_key = KEYS[1], KEYS[2], KEYS[3]
local next_key, calls_key = KEYS[4], KEYS[5]
local limit, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local changes_key = string.sub(calls_key, 1, -6) .. 'changes'
local _, stamp = now_us()

local kept = redis.call('HMGET', calls_key, 'copy', 'changes', 'layout', 'fence')
local reply = {'ok', stamp, kept[1] or '', kept[2] or '', kept[3] or '', kept[4] or '0',
  redis.call('ZCARD', changes_key)}

-- The due time and the record of a job that is to run, nil for another.
local function as_it_would_be(id)
  local lease = redis.call('HGET', lease_key, id)
  if lease then
    local successor = redis.call('HGET', next_key, id)
    if successor then
      local due, record = split_successor(successor)
      return int(due), record
    end
    local _, _, _, due, flag = split_lease(lease)
    if flag == 'cancelled' then
      return nil
    end
    return int(due), redis.call('HGET', shadow_key, id) or ''
  end
  local due = redis.call('ZSCORE', due_key, id)
  return due and due_text(due), due and redis.call('HGET', shadow_key, id) or ''
end

local ids = {}
if #ARGV > 2 then
  for i = 3, #ARGV do
    ids[#ids + 1] = ARGV[i]
    ids[#ids + 1] = redis.call('ZSCORE', changes_key, ARGV[i]) or '0'
  end
elseif limit > 0 then
  ids = redis.call('ZRANGE', changes_key, 0, limit - 1, 'WITHSCORES')
end
local size = 0
for i = 1, #ids, 2 do
  if size >= most then
    break
  end
  local due, record = as_it_would_be(ids[i])
  size = size + #(record or '')
  for _, part in ipairs({ids[i], whole(ids[i + 1]), due or '', due and record or ''}) do
    reply[#reply + 1] = part
  end
end
return reply
