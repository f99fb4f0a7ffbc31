-- scan: looks through one part of a ledger for names with a flaw. Reads only.
--
-- KEYS  1 due      keyfall:{app:module:biz/0}:due
--       2 shadow   keyfall:{app:module:biz/0}:shadow
--       3 leased   keyfall:{app:module:biz/0}:leased
--       4 lease    keyfall:{app:module:biz/0}:lease
--       5 next     keyfall:{app:module:biz/0}:next
--       6 dead     keyfall:{app:module:biz/0}:dead
--       7 grave    keyfall:{app:module:biz/0}:grave
-- ARGV  1 part (due | shadow | leased | lease | next | dead | grave), 2 cursor: zero at first,
--       then the cursor of the last reply, 3 count: about how many names to look at
-- Reply {'ok', now µs, cursor, looked, highest, name, fault, opening, name, fault, opening, …};
--       the cursor is zero at the end, `looked` is the number of names that were looked at, and
--       `highest` the largest number of a dead letter among them. A name, an id or `id:number`, is
--       returned if it has a flaw, a word of `audit`; if it has unusual characters; or if its
--       record is not plain, because Lua cannot tell whether such a name is valid and such a
--       record readable. The opening is the part before the payload of such a record, or its first
--       bytes if it has no such part; empty for other names
-- Holds: bounded by count. Names that exist from the first call to the last are looked at.

local PARTS = {due = 1, shadow = 2, leased = 3, lease = 4, next = 5, dead = 6, grave = 7}
local part = ARGV[1]
local at = PARTS[part]
local now, stamp = now_us()

-- How many bytes of a record without an opening are returned.
local FIRST_BYTES = 100

local function is_odd(id)
  return id == '' or #id > 256 or string.find(id, '[^%w_.~@-]')
end

-- Returns '' for a plain record, whose steps hold only the time of acceptance.
local function opening_of(record)
  if record == '' or string.find(record, '^{"v":1,"us":[1-9]%d?%d?}\n%d+\n') or
    string.find(record, '^{"v":1}\n%d+\n') then
    return ''
  end
  return string.match(record, '^[^\n]*\n[^\n]*\n') or string.sub(record, 1, FIRST_BYTES)
end

local page = redis.call(IS_SET[at] and 'ZSCAN' or 'HSCAN', KEYS[at], ARGV[2], 'COUNT', ARGV[3])
local looked, highest = 0, 0
local reply = {'ok', stamp, page[1]}
local suspects = {}
for i = 1, #page[2], 2 do
  local name, value = page[2][i], page[2][i + 1]
  local id, number = name, nil
  if at > 5 then
    id, number = string.match(name, '^(.+):(%d+)$')
    id = id or part == 'grave' and name or ''
    local letter = tonumber(number or 0)
    highest = letter < 2 ^ 53 and math.max(highest, letter) or highest
  end
  local opening = ''
  if part == 'shadow' or part == 'grave' and number then
    opening = opening_of(value)
  elseif part == 'next' then
    opening = opening_of(select(2, split_successor(value)))
  end
  if name ~= PLACEHOLDER or IS_SET[at] and value ~= 'inf' then
    looked = looked + 1
    local fault = fault_of(KEYS, name, math.floor(now / 1000), '')
    if fault ~= 'sound' or opening ~= '' or is_odd(id) then
      suspects[#suspects + 1] = name
      suspects[#suspects + 1] = fault
      suspects[#suspects + 1] = opening
    end
  end
end
reply[4], reply[5] = int(looked), int(highest)
for i, text in ipairs(suspects) do
  reply[5 + i] = text
end
return reply
