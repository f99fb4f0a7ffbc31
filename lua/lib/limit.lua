-- A limit of a ledger is the field `limit` of `calls`, `full gap burst most hold set …`. Further
-- lines follow: the share of this ledger, if several ledgers share the limit, see `lib/share.lua`;
-- and the limit of each group, if the kind has groups, see `lib/groups.lua`. The first line has:
--
--   full   when all starts of a burst are free again, Unix µs; a time in the past if they are now
--   gap    the µs between two starts in the long run; 0 without a rate
--   burst  how many jobs may start at once; 0 if other ledgers have all shares: nothing starts
--   most   how many leases there may be at once; 0 for any number
--   hold   until when no job starts, Unix µs, whatever the rate allows; 0 or a time in the past if
--          that is over
--   set    when the limit was set, Unix ms: the newest one wins
--   …      what people are told of it
--
-- Each start moves `full` by `gap`, and a job may start while `full` is less than `burst` gaps
-- ahead: the generic cell rate algorithm. So in any span of time at most `burst` jobs start, and
-- one more for each gap of the span.

local function read_limit(field)
  local full, tail, gap, burst, most, hold, rest = string.match(field or '',
    '^(%d+)( (%d+) (%d+) (%d+) (%d+)( .*))$')
  if not full then
    return nil
  end
  local line = string.find(rest, '\n', 1, true)
  local share, groups = nil, line and string.sub(rest, line + 1) or nil
  if line and string.byte(rest, line + 1) == 126 then
    share, groups = string.match(groups, '^([^\n]*)\n?(.*)$')
    groups = groups ~= '' and groups or nil
  end
  return {
    full = tonumber(full),
    tail = tail,
    gap = tonumber(gap),
    burst = tonumber(burst),
    most = tonumber(most),
    hold = tonumber(hold),
    rest = line and string.sub(rest, 1, line - 1) or rest,
    groups = groups,
    share = share,
  }
end

-- The field after starts: nothing else of it has changed.
local function write_full(limit)
  return int(limit.full) .. limit.tail
end

local function write_limit(limit)
  return table.concat({int(limit.full), int(limit.gap), int(limit.burst), int(limit.most),
    int(limit.hold)}, ' ') .. limit.rest .. (limit.share and '\n' .. limit.share or '')
    .. (limit.groups and '\n' .. limit.groups or '')
end

-- Whether it limits anything: one that was removed does not.
local function limits_starts(limit)
  return limit.gap + limit.most > 0 or limit.groups and string.sub(limit.groups, 1, 2) ~= '- '
end

-- How long a lapsed lease keeps a start for its takeover. Each worker finds it within seconds; a
-- job that none takes over must not stop the others.
local TAKEOVER_MS = 60000

-- The longest hold. One that is further ahead is from before the clock was set back.
local HOLD_US = 3600000000

-- Whether no job may start for now, whatever the rate allows.
local function is_on_hold(limit, now)
  return limit.hold > now and limit.hold <= now + HOLD_US
end

-- The jobs that may start now by the rate and the hold. If the clock was set back, all starts of a
-- burst count as used.
local function starts_left(limit, now)
  local starts = math.huge
  if limit.gap > 0 and limit.burst == 0 then
    -- What has started before still counts when the ledger gets a share again.
    return 0
  elseif limit.gap > 0 then
    limit.full = math.max(now, math.min(limit.full, now + limit.burst * limit.gap))
    starts = math.floor((now + limit.burst * limit.gap - limit.full) / limit.gap)
  end
  return is_on_hold(limit, now) and 0 or starts
end

-- How many due jobs may start now, and how many if leases did not count. Lapsed leases come first.
local function room_for_due(limit, leased_key, now)
  if limit.burst == 0 then
    return 0, 0
  end
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

-- When the rate and the hold allow the next start, Unix µs; 0 if they do not stop any.
local function next_start(limit, now)
  if starts_left(limit, now) > 0 then
    return 0
  end
  local has_rate = limit.gap > 0 and limit.burst > 0
  local by_rate = has_rate and limit.full - (limit.burst - 1) * limit.gap or 0
  return is_on_hold(limit, now) and math.max(by_rate, limit.hold) or by_rate
end

-- The pacer hears that due jobs wait for the limit, and of the next start by the rate; and the
-- balancer, if other ledgers may have shares to give.
local function tell_held(channel, subject, limit, now)
  redis.pcall('PUBLISH', channel, 'held ' .. subject .. ' ' .. int(next_start(limit, now))
    .. (limit.share and ' shared' or ''))
end

-- The most jobs that are announced at once.
local ANNOUNCED = 64

-- After leases have ended: adds the oldest due jobs to `news`, as many as may start now. If the
-- rate stops all of them, the pacer hears of the next start.
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
