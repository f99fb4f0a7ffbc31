-- names: the names in one part of a ledger, without their values. Reads only.
--
-- KEYS  1 shadow  keyfall:{app:module:biz/0}:shadow
--       or `grave` or `adopted` instead
-- ARGV  1 cursor: zero at first, then the cursor of the last reply, 2 count: about how many to look
--       at, 3 scan: HSCAN, or ZSCAN for a sorted set
-- Reply {'ok', now µs, cursor, names}; the cursor is zero at the end, the names are separated by
--       blanks
-- Holds: bounded by count. Names that exist from the first call to the last are included.

local _, stamp = now_us()
local page = redis.call(ARGV[3], KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local names = {}
for i = 1, #page[2], 2 do
  if page[2][i] ~= PLACEHOLDER then
    names[#names + 1] = page[2][i]
  end
end
return {'ok', stamp, page[1], table.concat(names, ' ')}
