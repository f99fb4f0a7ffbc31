-- What may start after leases of a kind with groups have ended, and what the pacer and the sweep
-- announce. `groups` comes from `open_groups`.

local function open_news(groups, entries, room_for_due)
  local it = {}
  local int, now, due_key = groups.int, groups.now, groups.due_key

  -- When the rate of a group allows the next start, µs; 0 if no group waits for that. Those whose
  -- time has come are among the next groups.
  function it.next_alarm()
    local first = redis.call('ZRANGEBYSCORE', groups.turns_key, '(' .. int(groups.ALARM + now),
      '(' .. int(groups.WANTS), 'WITHSCORES', 'LIMIT', 0, 1)
    return first[2] and tonumber(first[2]) - groups.ALARM or 0
  end

  -- The groups whose turn is next, and those whose rate allows a start again.
  local function next_groups(count)
    local found = redis.call('ZRANGEBYSCORE', groups.turns_key, '-inf', '(' .. int(groups.PARKED),
      'LIMIT', 0, count)
    local woken = redis.call('ZRANGEBYSCORE', groups.turns_key, int(groups.ALARM),
      int(groups.ALARM + now), 'LIMIT', 0, count)
    for _, name in ipairs(woken) do
      found[#found + 1] = string.sub(name, 2)
    end
    return found
  end

  -- Up to `count` jobs whose turn is next, as many of each group. They are hints: each makes some
  -- worker claim, and the claim takes what may start. Afterwards `is_cut` says whether others may
  -- start as well.
  function it.next_jobs(count)
    local names = next_groups(count)
    local each = math.max(1, math.floor(count / math.max(1, #names)))
    each = math.min(each, groups.most > 0 and groups.most or each)
    local rates, entries_of = entries.rates_of(names), {}
    for _, group in ipairs(names) do
      local starts = groups.starts_left(rates[group], now)
      it.is_cut = it.is_cut or groups.gap > 0 and starts > each
      -- One that may start nothing is parked by the claim, which says what it waits for. Its share
      -- may have gone since it took turns again.
      entries_of[group] = entries.first_waiting(group, math.min(each, math.max(1, starts)))
    end
    it.is_cut = it.is_cut or #names >= count
    local stale, ids = {}, {}
    local jobs_of = entries.checked(entries_of, stale)
    for place = 1, each do
      for _, group in ipairs(names) do
        local job = jobs_of[group] and jobs_of[group][place]
        if job and #ids < count then
          ids[#ids + 1] = job.id
        end
      end
    end
    -- Either all these entries are stale, or there are more groups, and a claim will find that; or
    -- the turns were lost.
    if #ids == 0 and (#stale > 0 or #names >= count or groups.back ~= '-'
      or redis.call('ZCARD', groups.turns_key) == 0) then
      return redis.call('ZRANGEBYSCORE', due_key, int(groups.ASIDE), '(inf', 'LIMIT', 0, count)
    end
    return ids
  end

  -- The same, and jobs that are due and were not set aside yet.
  function it.startable(count)
    local ids = it.next_jobs(count)
    if #ids < count then
      local plain = redis.call('ZRANGEBYSCORE', due_key, '-inf', int(math.floor(now / 1000)),
        'LIMIT', 0, count - #ids)
      for _, id in ipairs(plain) do
        ids[#ids + 1] = id
      end
    end
    return ids
  end

  -- Adds jobs to `news` after leases have ended, `count_of` by group: of the groups that were
  -- parked for that; or of those whose turn is next, if the kind itself was at its limit, or if the
  -- first jobs of a freed group are not there any more. At most `most`.
  function it.announce(news, freed, count_of, leased_key, most)
    local left = math.min(room_for_due(groups.limit, leased_key, now), most)
    local entries_of = {}
    for _, group in ipairs(left > 0 and freed or {}) do
      entries_of[group] = entries.first_waiting(group, math.min(left, count_of[group]))
    end
    local stale = {}
    for _, jobs in pairs(entries.checked(entries_of, stale)) do
      for _, job in ipairs(jobs) do
        if left > 0 then
          news[#news + 1], left = job.id, left - 1
        end
      end
    end
    if left > 0 and (groups.limit.most > 0 or #stale > 0) then
      for _, id in ipairs(it.startable(left)) do
        news[#news + 1] = id
      end
    end
  end

  return it
end

-- These leases of the ids have ended. Adds jobs to `news` that may start now, 64 at the most. If
-- the rate of the kind allows fewer, the pacer hears when to ask again, as `held` says.
local function end_leases(groups, news, ids, leases, leased_key, held)
  local gone, count_of, names = {}, {}, {}
  for i = 1, groups.most > 0 and #ids or 0 do
    local group = leases[i] and groups.group_in(leases[i])
    if group then
      gone[#gone + 1] = group .. '\0r\0' .. ids[i]
    end
    if group and groups.waits then
      if not count_of[group] then
        names[#names + 1] = group
      end
      count_of[group] = (count_of[group] or 0) + 1
    end
  end
  if #gone > 0 then
    redis.call('ZREM', groups.entries_key, unpack(gone))
  end
  if #ids == 0 or not groups.waits and groups.limit.most == 0 then
    return
  end
  local entries = open_entries(groups, due_of, groups_of)
  local freed = #names > 0 and entries.unparked(names) or {}
  if #freed > 0 or groups.limit.most > 0 then
    open_news(groups, entries, room_for_due).announce(news, freed, count_of, leased_key,
      math.min(#ids, 64))
    if groups.limit.gap > 0 and groups.waits then
      local next_one = next_start(groups.limit, groups.now)
      next_one = next_one > 0 and next_one or groups.now + groups.limit.gap
      redis.pcall('PUBLISH', held.channel, 'held ' .. held.subject .. ' ' .. groups.int(next_one))
    end
  end
end
