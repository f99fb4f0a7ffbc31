-- archived: removes records of ended jobs that are in the archive.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
-- ARGV  1 ended, 2 died: the numbers of the first records that stay, of each list, 3 last ended,
--       4 last died: the first line of the record before each, 5 first ended, 6 first died: the
--       numbers of the first records that were read, 7 bytes ended, 8 bytes died: of all that were
--       read
-- Reply {'ok', now µs, removed}: how many records were removed
-- Holds: may be repeated, and be late: only records with lower numbers go, and none if the last of
--       them is another one than was read: a server that has lost its last writes gives their
--       numbers to others. Works while Redis is full.

local calls_key = KEYS[1]
local start = string.sub(calls_key, 1, -6)
local _, stamp = now_us()

local first, bytes, first_died, bytes_died, dropped =
  string.match(redis.call('HGET', calls_key, 'waiting') or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
-- If the numbers are lost, new ones begin, and nothing is removed by the old ones.
first, first_died = first or stamp, first_died or stamp
local lists = {
  {key = start .. 'ended', first = tonumber(first), bytes = tonumber(bytes or 0)},
  {key = start .. 'died', first = tonumber(first_died), bytes = tonumber(bytes_died or 0)},
}
for _, list in ipairs(lists) do
  redis.call('LLEN', list.key)
end
-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('HDEL', calls_key, '')
local removed = 0
for i, list in ipairs(lists) do
  local count, line = tonumber(ARGV[i]) - list.first, ARGV[2 + i] .. '\n'
  local last = count > 0 and redis.call('LINDEX', list.key, int(count - 1))
  local left = last and string.sub(last, 1, #line) == line and count or 0
  if left > 0 and tonumber(ARGV[4 + i]) == list.first then
    -- All that were read, and their bytes are known.
    redis.call('LTRIM', list.key, left, -1)
    list.first, list.bytes = list.first + left, math.max(0, list.bytes - tonumber(ARGV[6 + i]))
    removed, left = removed + left, 0
  end
  while left > 0 do
    -- Few at a time: they may be large.
    local gone = redis.call('LPOP', list.key, math.min(left, 64))
    for _, record in ipairs(gone) do
      list.bytes = list.bytes - #record
    end
    list.first, list.bytes = list.first + #gone, math.max(0, list.bytes)
    removed, left = removed + #gone, left - #gone
  end
  -- Also if another program has taken records away.
  if redis.call('LLEN', list.key) == 0 then
    list.bytes = 0
  end
end
local ended, died = lists[1], lists[2]
redis.call('HSET', calls_key, 'waiting', table.concat({int(ended.first), int(ended.bytes),
  int(died.first), int(died.bytes), dropped or '0'}, ' '))
return {'ok', stamp, removed}
