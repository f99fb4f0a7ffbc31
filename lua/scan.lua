-- scan: looks through one part of a ledger for names with which something is wrong. Reads only.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 shadow   keyfall:{app:module:biz/0}:shadow
--       3 leased   keyfall:{app:module:biz/0}:leased
--       4 lease    keyfall:{app:module:biz/0}:lease
--       5 next     keyfall:{app:module:biz/0}:next
--       6 dead     keyfall:{app:module:biz/0}:dead
--       7 grave    keyfall:{app:module:biz/0}:grave
-- ARGV  1 part (due | shadow | leased | lease | next | dead | grave), 2 cursor: zero at first,
--       then that of the last reply, 3 count: about how many names to look at
-- Reply {'ok', now µs, cursor, looked, names}; the cursor is zero at the end, looked is how many
--       names were looked at, and the names, ids or `id:number`, are separated by blanks
-- Holds: bounded by count. What is there from the first call to the last is looked at.

local PARTS = {due = 1, shadow = 2, leased = 3, lease = 4, next = 5, dead = 6, grave = 7}
local part = ARGV[1]
local key = KEYS[PARTS[part]]
local now, stamp = now_us()

local is_set = part == 'due' or part == 'leased' or part == 'dead'
local page = redis.call(is_set and 'ZSCAN' or 'HSCAN', key, ARGV[2], 'COUNT', ARGV[3])
local looked, suspects = 0, {}
for i = 1, #page[2], 2 do
  local name = page[2][i]
  if name ~= PLACEHOLDER then
    looked = looked + 1
    if fault_of(KEYS, name, math.floor(now / 1000)) ~= 'sound' then
      suspects[#suspects + 1] = name
    end
  end
end
return {'ok', stamp, page[1], int(looked), table.concat(suspects, ' ')}
