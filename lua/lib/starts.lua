-- What starts leave behind for the limits of groups. `groups` comes from `open_groups`.

-- The scores of `rates` after these groups have started so many jobs, and the latest of them:
-- `rates` and `count_of` by group.
local function scores_of(groups, rates, count_of)
  local scores, now = {latest = groups.now}, groups.now
  for group, count in pairs(count_of) do
    use_starts(rates[group], now, count)
    local full = math.max(rates[group].full, now)
    scores.latest = math.max(scores.latest, full)
    scores[#scores + 1], scores[#scores + 2] = groups.int(full), group
  end
  return scores
end

-- Writes the leases of jobs that start, and the scores of `rates`. Now and then it forgets some
-- rates that do not matter any more. After all of them their key goes by itself: its expiry is a
-- second late, so that it is not set with each claim.
local function write_starts(groups, ids, names, scores)
  if #ids > 0 and groups.most > 0 then
    local entries = {}
    for i = 1, #ids do
      entries[2 * i - 1], entries[2 * i] = '0', names[i] .. '\0r\0' .. ids[i]
    end
    redis.call('ZADD', groups.entries_key, unpack(entries))
  end
  if groups.gap == 0 and not groups.shares_key or #ids == 0 then
    return
  end
  local now, int = groups.now, groups.int
  redis.call('ZADD', groups.rates_key, unpack(scores))
  if now % 8 == 0 and groups.shares_key then
    local over = redis.call('ZRANGEBYSCORE', groups.rates_key, '-inf', int(now - groups.IDLE),
      'LIMIT', 0, 256)
    if #over > 0 then
      redis.call('HDEL', groups.shares_key, unpack(over))
      redis.call('ZREM', groups.rates_key, unpack(over))
    end
  elseif now % 8 == 0 then
    local over = redis.call('ZCOUNT', groups.rates_key, '-inf', int(now))
    if over > 0 then
      redis.call('ZREMRANGEBYRANK', groups.rates_key, 0, math.min(over, 2048) - 1)
    end
  end
  groups.keep_till(scores.latest)
end
