-- found: makes every key of a ledger exist, and stay, even if it is empty.
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
-- ARGV  none
-- Reply {'ok', now µs}
-- Holds: may be repeated, and be late. Changes no existing key. A key of a foreign type is
--       left alone: the calls that need it report it. Fails while Redis is full.

local SETS, HASHES = 5, 7
local _, stamp = now_us()

-- The error of a write that a full Redis has refused. The whole call may be repeated later.
local full
local function note_refusal(reply)
  if type(reply) == 'table' and reply.err and string.find(reply.err, 'OOM', 1, true) then
    full = reply
  end
end

for i = 1, SETS do
  note_refusal(redis.pcall('ZADD', KEYS[i], 'NX', 'inf', PLACEHOLDER))
end
for i = SETS + 1, SETS + HASHES do
  note_refusal(redis.pcall('HSETNX', KEYS[i], PLACEHOLDER, '0'))
end
-- A stream exists even if it is empty. One that exists already refuses so low an id.
note_refusal(redis.pcall('XADD', KEYS[SETS + HASHES + 1], 'MAXLEN', 0, '0-1', 'what', 'founded'))
keep_for_good(KEYS[4], KEYS[SETS + 6])
return full or {'ok', stamp}
