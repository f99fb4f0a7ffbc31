-- idle: whether a ledger has any key, and the time of its last call. Reads only.
--
-- KEYS  1 due     keyfall:{app:module:biz/0}:due
--       2 shadow  keyfall:{app:module:biz/0}:shadow
--       3 lease   keyfall:{app:module:biz/0}:lease
--       4 next    keyfall:{app:module:biz/0}:next
--       5 grave   keyfall:{app:module:biz/0}:grave
--       6 stats   keyfall:{app:module:biz/0}:stats
--       7 calls   keyfall:{app:module:biz/0}:calls
-- ARGV  1 since: one to look for the last call, zero not to
-- Reply {'ok', now µs, there, called}; `there` is one if any of these keys exists, else zero;
--       `called` is the time of the last remembered call, Unix ms: zero if there is none, now if
--       there are too many to look at
-- Holds: a call that can change nothing need not be sent to an absent ledger.

local calls_key = KEYS[7]
local now, stamp = now_us()

local there = #redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'LIMIT', 0, 1)
for i = 2, #KEYS do
  there = there + redis.call('HLEN', KEYS[i])
end

local called = 0
if ARGV[1] == '1' then
  called = last_call(calls_key, now)
end
return {'ok', stamp, there > 0 and 1 or 0, int(called)}
