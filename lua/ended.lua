-- ended: reads the oldest records of ended jobs, for an archive.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
-- ARGV  1 limit: the most records of each list, 2 bytes: about how many bytes of each
-- Reply {'ok', now µs, rule, first ended, waiting, bytes, first died, waiting, bytes, dropped,
--       count, record, …, count, record, …}: the rule as in `lib/archive.lua`, empty without one;
--       of each list the number of its first record, how many records wait, and their bytes; how
--       many records were dropped; then the oldest records of `ended`, and those of `died`
-- Holds: only reads.

local limit, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local start = string.sub(KEYS[1], 1, -6)
local _, stamp = now_us()

local kept = redis.call('HMGET', KEYS[1], 'archive', 'waiting')
local first, bytes, first_died, bytes_died, dropped =
  string.match(kept[2] or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
local reply = {'ok', stamp, kept[1] or '', first or '0', redis.call('LLEN', start .. 'ended'),
  bytes or '0', first_died or '0', redis.call('LLEN', start .. 'died'), bytes_died or '0',
  dropped or '0'}
for _, list in ipairs({'ended', 'died'}) do
  local count_at, size = #reply + 1, 0
  -- Few at first: they may be large.
  local wanted = 1
  reply[count_at] = 0
  while reply[count_at] < limit and size < most do
    local from = reply[count_at]
    local read = redis.call('LRANGE', start .. list, from, math.min(from + wanted, limit) - 1)
    for _, record in ipairs(read) do
      if size < most then
        size = size + #record
        reply[#reply + 1] = record
        reply[count_at] = reply[count_at] + 1
      end
    end
    if #read < wanted then
      break
    end
    wanted = math.min(2 * wanted, 256)
  end
end
return reply
