-- renew: extends leases that are still held, lapsed ones included if no other claim has the job.
--
-- KEYS  1 leased   keyfall:{app:module:biz/0}:leased
--       2 lease    keyfall:{app:module:biz/0}:lease
-- ARGV  1 lease ms, 2 mode (set | longer), then for each item: id, token
-- Reply {'ok', now µs, answers}; answers, separated by blanks:
--       renewed    held until now + lease ms; `longer` leaves a lease that runs longer already
--       cancelled  renewed, but the job was cancelled: stop the run
--       gone       there is no lease: the job was settled, or its ledger was lost
--       foreign    another token holds it
-- Holds: works while Redis is full. Takes no lane: a late renewal finds another token, or extends
--       the lease beyond the time that its owner counts on. A caller whose renewals differ in
--       length asks for `longer`, so that a late one shortens no lease.

local leased_key, lease_key = KEYS[1], KEYS[2]
local now, stamp = now_us()
local deadline = int(math.ceil(now / 1000) + tonumber(ARGV[1]))
local ids = {}
for i = 3, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local leases = redis.call('HMGET', lease_key, unpack(ids))

local answers, deadlines = {}, {}
for i, id in ipairs(ids) do
  if not leases[i] then
    answers[i] = 'gone'
  elseif not holds(leases[i], ARGV[2 * i + 2]) then
    answers[i] = 'foreign'
  else
    answers[i] = is_cancelled(leases[i]) and 'cancelled' or 'renewed'
    deadlines[#deadlines + 1] = deadline
    deadlines[#deadlines + 1] = id
  end
end

-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('ZREM', leased_key, '')
if #deadlines > 0 then
  if ARGV[2] == 'longer' then
    redis.call('ZADD', leased_key, 'GT', unpack(deadlines))
  else
    redis.call('ZADD', leased_key, unpack(deadlines))
  end
end
return {'ok', stamp, table.concat(answers, ' ')}
