-- A limit of a ledger is the field `limit` of `calls`, `full gap burst most set by`:
--
--   full   when all starts of a burst are free again, Unix µs; a time in the past if they are now
--   gap    the µs between two starts in the long run; 0 without a rate
--   burst  how many jobs may start at once
--   most   how many leases there may be at once; 0 for any number
--   set    when the limit was set, Unix ms: the newest one wins
--   by     who set it
--
-- Each start moves `full` by `gap`, and a job may start while `full` is less than `burst` gaps
-- ahead: the generic cell rate algorithm. So in any span of time at most `burst` jobs start, and
-- one more for each gap of the span.

local function read_limit(field)
  local full, gap, burst, most, rest = string.match(field or '',
    '^(%d+) (%d+) (%d+) (%d+)( .*)$')
  if not full then
    return nil
  end
  return {
    full = tonumber(full),
    gap = tonumber(gap),
    burst = tonumber(burst),
    most = tonumber(most),
    rest = rest,
  }
end

local function write_limit(limit)
  return table.concat({int(limit.full), int(limit.gap), int(limit.burst), int(limit.most)}, ' ')
    .. limit.rest
end

-- How long a lapsed lease keeps a start for its takeover. Each worker finds it within seconds; a job
-- that none takes over must not stop the others.
local TAKEOVER_MS = 60000

-- The jobs that may start now by the rate alone. If the clock was set back, all starts of a burst
-- count as used.
local function starts_left(limit, now)
  if limit.gap == 0 then
    return math.huge
  end
  limit.full = math.max(now, math.min(limit.full, now + limit.burst * limit.gap))
  return math.floor((now + limit.burst * limit.gap - limit.full) / limit.gap)
end

-- How many due jobs may start now, and how many by the rate alone. Lapsed leases come first.
local function room_for_due(limit, leased_key, now)
  local starts, now_ms = starts_left(limit, now), math.floor(now / 1000)
  if limit.gap > 0 then
    local lapsed = redis.call('ZCOUNT', leased_key, int(now_ms - TAKEOVER_MS), int(now_ms))
    starts = math.max(0, starts - lapsed)
  end
  local leases = limit.most > 0 and redis.call('ZCOUNT', leased_key, '-inf', '(inf')
  return leases and math.max(0, math.min(starts, limit.most - leases)) or starts, starts
end

-- Takes that many starts from the rate.
local function use_starts(limit, now, count)
  if limit.gap > 0 then
    limit.full = math.max(limit.full, now) + count * limit.gap
  end
end

-- When the rate allows the next start, Unix µs; 0 if it does not stop any.
local function next_start(limit, now)
  if starts_left(limit, now) > 0 then
    return 0
  end
  return limit.full - (limit.burst - 1) * limit.gap
end

-- The pacer hears that due jobs wait for the limit, and of the next start by the rate.
local function tell_held(channel, subject, limit, now)
  redis.pcall('PUBLISH', channel, 'held ' .. subject .. ' ' .. int(next_start(limit, now)))
end

-- The most jobs that are announced at once.
local ANNOUNCED = 64

-- After leases have ended: adds the oldest due jobs to `news`, as many as may start now. If the rate
-- stops all of them, the pacer hears of the next start.
local function announce_waiting(news, limit, due_key, leased_key, channel, subject, now)
  local room = room_for_due(limit, leased_key, now)
  local oldest = redis.call('ZRANGEBYSCORE', due_key, '-inf', int(math.floor(now / 1000)), 'LIMIT',
    0, math.max(1, math.min(room, ANNOUNCED)))
  if room == 0 and #oldest > 0 then
    tell_held(channel, subject, limit, now)
  elseif room > 0 then
    for _, id in ipairs(oldest) do
      news[#news + 1] = id
    end
  end
end
