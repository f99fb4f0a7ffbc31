-- cancel: removes pending jobs; a run in progress is told to stop and is not retried.
--
-- KEYS  1 due       keyfall:{app:module:biz/0}:due
--       2 shadow    keyfall:{app:module:biz/0}:shadow
--       3 lease     keyfall:{app:module:biz/0}:lease
--       4 next      keyfall:{app:module:biz/0}:next
--       5 stats     keyfall:{app:module:biz/0}:stats
--       6 calls     keyfall:{app:module:biz/0}:calls
--       7 lanes     keyfall:{app:module:biz/0}:lanes
--       8 history   keyfall:{app:module:biz/0}:history
--       9… trigger  app:module:biz:id, one for each item; none where triggers live elsewhere
-- ARGV  1 lane, 2 number, 3 who, 4 place, 5 wake channel, 6 kind (app:module:biz), 7 marker,
--       then for each item: `id`; or `id number`, to cancel the job only if its order number is
--       lower; or `id`, a line end, and what was seen of the job, as in `lib/version.lua`, to
--       cancel it only if it is still so
-- Reply {'ok', now µs, answers}, {'late', now µs}, or {'stale', now µs, layout} if this ledger has
--       another layout; answers, separated by blanks:
--       cancelled   it will never start
--       running     it is running and will not be retried; its successor is gone
--       absent      no such job
--       changed     the job is not as the caller has seen it: nothing was done
--       overtaken:number   the job has this order number, which is not lower: nothing was done
--       elsewhere   the job belongs to another ledger by now: nothing was done
-- Holds: works while Redis is full.

local FIXED, HEAD = 8, 7
local due_key, shadow_key, lease_key, next_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stats_key, calls_key, lanes_key, history_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local lane, number, place, marker = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[7]
local now, stamp = now_us()

local past, known, history, _, _, archived, changes =
  past_reply(calls_key, lane, number, stamp, place)
if past then
  return past
end

local ids, limits, seen = {}, {}, {}
for i = 1, #ARGV - HEAD do
  local id, mark, condition = string.match(ARGV[HEAD + i], '^(%S+)(%s?)(.*)$')
  ids[i] = id
  if mark == ' ' then
    limits[i] = tonumber(condition)
  elseif mark ~= '' then
    seen[i] = condition
  end
end
local dues = redis.call('ZMSCORE', due_key, unpack(ids))
local leases = redis.call('HMGET', lease_key, unpack(ids))
local successors = next_of(next_key, ids, leases)

local archive = archived and open_archive(archived, calls_key, stamp, ARGV[3])

local answers, removed, marked, dropped, disarmed, done = {}, {}, {}, {}, {}, {}
local counts = {}
local story = noting(new_story(history), changes, calls_key)
for i, id in ipairs(ids) do
  local there = 0
  -- An earlier item has cancelled the job; its run is still there.
  if limits[i] and (leases[i] or dues[i] and not done[id] and not is_old(place)) then
    there = order_there(shadow_key, id, not done[id] and successors[i])
  end
  local state = not done[id] and state_of(dues[i], leases[i], successors[i])
  local is_seen = not seen[i] or not state
    or is_as_seen(seen[i], state, record_there(shadow_key, id, successors[i]) or '')
  if limits[i] and there >= limits[i] then
    answers[i] = 'overtaken:' .. int(there)
  elseif not is_seen then
    answers[i] = 'changed'
  elseif leases[i] then
    answers[i] = 'running'
    if not done[id] then
      tell(story, 'stopping', '', id, '-', '-')
      local token, claims, fence, due = split_lease(leases[i])
      marked[#marked + 1] = id
      marked[#marked + 1] = new_lease(token, claims, int(fence), int(due), 'cancelled')
      if successors[i] then
        dropped[#dropped + 1] = id
        count_one(counts, 'cancelled')
        if archive then
          local its_due, record = split_successor(successors[i])
          archive_end(archive, 'cancelled', id, record, nil, int(its_due))
        end
      end
    end
  elseif is_old(place) then
    answers[i] = 'elsewhere'
  elseif dues[i] and not done[id] then
    answers[i] = 'cancelled'
    tell(story, 'cancelled', '', id, '-', '-')
    removed[#removed + 1] = id
    disarmed[#disarmed + 1] = i
    count_one(counts, 'cancelled')
    if archive then
      local record = redis.call('HGET', shadow_key, id)
      archive_end(archive, 'cancelled', id, record, nil, due_text(dues[i]))
    end
  else
    answers[i] = 'absent'
  end
  done[id] = done[id] or is_seen and string.sub(answers[i], 1, 9) ~= 'overtaken'
end

-- A full Redis lets a script run on if its first write is a removal, even an empty one. This one
-- also shows whether the records are of the right type.
redis.call('HDEL', shadow_key, '')
local _, fault = raise(stats_key, counts)
if fault then
  return fault
end
fault = write_archive(archive, calls_key)
if fault then
  lower(stats_key, counts)
  return fault
end
if #removed > 0 then
  redis.call('ZREM', due_key, unpack(removed))
  redis.call('HDEL', shadow_key, unpack(removed))
end
if #dropped > 0 then
  redis.call('HDEL', next_key, unpack(dropped))
end
if #marked > 0 then
  redis.call('HSET', lease_key, unpack(marked))
end
write_changes(story, calls_key, now)
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply)
if #KEYS > FIXED then
  for _, i in ipairs(disarmed) do
    disarm(KEYS[FIXED + i], marker)
  end
end
for i = 1, #marked, 2 do
  redis.pcall('PUBLISH', ARGV[5], 'cancel ' .. ARGV[6] .. ' ' .. marked[i])
end
write_story(story, history_key, ARGV[3])
return {'ok', stamp, reply}
