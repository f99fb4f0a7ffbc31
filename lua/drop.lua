-- drop: forgets a batch that was kept aside, once it has arrived in its ledger.
--
-- KEYS  1 calls    keyfall:{app:module:biz/0}:calls
--       2 leaving  keyfall:{app:module:biz/0}:leaving
-- ARGV  1 batch
-- Reply {'ok', now µs}
-- Holds: may be repeated, and be late: a later batch is left alone. Works while Redis is full.

local _, stamp = now_us()
redis.call('HLEN', KEYS[2])
if redis.call('HGET', KEYS[1], 'batch') == ARGV[1] then
  clear(KEYS[2])
end
return {'ok', stamp}
