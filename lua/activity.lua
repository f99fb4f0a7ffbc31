-- activity: adds what one worker has counted to the activity of a kind, for charts.
--
-- KEYS  1 minutes   keyfall:{app:module:biz}:minutes
--       2 quarters  keyfall:{app:module:biz}:quarters
-- ARGV  for each minute 1 minute: its number since the epoch, 2 counts: numbers with blanks
--       between, done, failed, buried, the longest lag in ms, and a histogram of the lags, as long
--       as needed
-- Reply {'ok', now µs}
-- Holds: both keys are rings of fixed size, 60 minutes and 96 quarters of an hour, and expire when
--       nothing was added for as long as they reach back. A field is `number counts`; an older
--       number is replaced, and counts are added to the same one. A repeated call counts twice.

local RINGS = {
  {key = KEYS[1], minutes = 1, size = 60},
  {key = KEYS[2], minutes = 15, size = 96},
}
local MS = 60000
-- The place of the longest lag among the counts.
local LONGEST = 4
local now, stamp = now_us()
local latest = math.floor(now / 1000 / MS)

local function numbers_in(text)
  local found = {}
  for number in string.gmatch(text, '%d+') do
    found[#found + 1] = tonumber(number)
  end
  return found
end

-- The sum of two lists of counts, which may differ in length.
local function sum(one, other)
  local both = {}
  for i = 1, math.max(#one, #other) do
    local a, b = one[i] or 0, other[i] or 0
    both[i] = i == LONGEST and math.max(a, b) or a + b
  end
  return both
end

local function written(number, counts)
  local text = {int(number)}
  for i, count in ipairs(counts) do
    text[i + 1] = int(count)
  end
  return table.concat(text, ' ')
end

-- Reads come first: a key of another type ends the call before it writes.
for _, ring in ipairs(RINGS) do
  ring.fields = {}
  for i = 1, #ARGV, 2 do
    local number = math.floor(tonumber(ARGV[i]) / ring.minutes)
    local field = int(number % ring.size)
    local kept = ring.fields[field]
    if not kept then
      local found = numbers_in(redis.call('HGET', ring.key, field) or '')
      kept = {number = table.remove(found, 1) or 0, counts = found}
      -- If the clock was set back, numbers to come are left from before.
      if kept.number > latest / ring.minutes then
        kept.number = 0
      end
      ring.fields[field] = kept
    end
    if kept.number < number then
      kept.number, kept.counts = number, {}
    end
    if kept.number == number then
      kept.counts = sum(kept.counts, numbers_in(ARGV[i + 1]))
    end
  end
end

for _, ring in ipairs(RINGS) do
  local change = {}
  for field, kept in pairs(ring.fields) do
    change[#change + 1] = field
    change[#change + 1] = written(kept.number, kept.counts)
  end
  redis.call('HSET', ring.key, unpack(change))
  local ends = math.floor(now / 1000) + (ring.size + 1) * ring.minutes * MS
  redis.call('PEXPIREAT', ring.key, int(ends))
end
return {'ok', stamp}
