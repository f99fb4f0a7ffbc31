-- The entries of waiting jobs of a kind with groups, and what a change of the limit leaves behind:
-- jobs that are aside by an old rule, leases without a group, and groups that are parked by old
-- terms. All of that is done in steps. `groups` comes from `open_groups`.

local function open_entries(groups, due_of, groups_of)
  local it = {}
  local int, now, due_key = groups.int, groups.now, groups.due_key
  -- How many jobs come back with one call, how many leases a step of the census looks at, and how
  -- many groups one call unparks.
  local BACK, CENSUS, MOST_UNPARKED = 1000, 256, 1000

  -- The first waiting jobs of a group, as entries.
  function it.first_waiting(group, count)
    return redis.call('ZRANGEBYLEX', groups.entries_key, '[' .. group .. '\0w',
      '(' .. group .. '\0x', 'LIMIT', 0, count)
  end

  -- The jobs of entries that are valid, each with `due`, `id` and `entry`, by group. The other
  -- entries are added to `stale`.
  function it.checked(entries_of, stale)
    local ids, found = {}, {}
    for group, entries in pairs(entries_of) do
      local at = #group + 4
      for _, entry in ipairs(entries) do
        ids[#ids + 1] = string.sub(entry, at + 17)
        local due = tonumber(string.sub(entry, at, at + 15))
        found[#ids] = {group = group, due = due, id = ids[#ids], entry = entry}
      end
    end
    local scores = #ids > 0 and redis.call('ZMSCORE', groups.due_key, unpack(ids)) or {}
    local jobs_of = {}
    for i, job in ipairs(found) do
      local jobs = jobs_of[job.group] or {}
      jobs_of[job.group] = jobs
      if tonumber(scores[i] or nil) == job.due + groups.ASIDE then
        jobs[#jobs + 1] = job
      else
        stale[#stale + 1] = job.entry
      end
    end
    return jobs_of
  end

  -- Unparks those of these groups that wait for the end of a lease, and not for their rate. Returns
  -- all groups that may have jobs to start.
  function it.unparked(names)
    if not groups.waits then
      return {}
    end
    local asked = {}
    for _, group in ipairs(names) do
      asked[#asked + 1], asked[#asked + 2] = group, '=' .. group
    end
    local scores = redis.call('ZMSCORE', groups.turns_key, unpack(asked))
    local turns, freed = {}, {}
    for i, group in ipairs(names) do
      local score, alarm = tonumber(scores[2 * i - 1] or nil), scores[2 * i]
      if score and score >= groups.PARKED and not alarm then
        turns[#turns + 1] = string.format('%.17g', math.max(groups.tag, score - groups.PARKED))
        turns[#turns + 1] = group
      end
      if score and not alarm then
        freed[#freed + 1] = group
      end
    end
    if #turns > 0 then
      redis.call('ZADD', groups.turns_key, unpack(turns))
    end
    return freed
  end

  -- The state of the rates of these groups, for `starts_left` and `use_starts`.
  function it.rates_of(names)
    local fulls = groups.gap > 0 and #names > 0
      and redis.call('ZMSCORE', groups.rates_key, unpack(names)) or {}
    local shares = groups.shares_key and #names > 0
      and redis.call('HMGET', groups.shares_key, unpack(names)) or {}
    local rates = {}
    for i, group in ipairs(names) do
      rates[group] = groups.rate_of(fulls[i], shares[i])
    end
    return rates
  end

  -- Stores the rates that are too far ahead: a group that starts nothing would never come to it.
  function it.write_cut(rates)
    for group, rate in pairs(rates) do
      if rate.is_cut then
        redis.call('ZADD', groups.rates_key, int(rate.full), group)
      end
    end
  end

  -- Notes that these groups wait for a share. Returns whether one of them did not before.
  function it.ask_for(names)
    local asking = {}
    for _, group in ipairs(names) do
      asking[#asking + 1] = int(groups.WANTS + math.floor(now / 1000))
      asking[#asking + 1] = '?' .. group
    end
    return #names > 0 and redis.call('ZADD', groups.turns_key, 'NX', unpack(asking)) > 0
  end

  -- Makes jobs that are aside plain due jobs again, from `back` on.
  function it.bring_back()
    local from = groups.ASIDE + (tonumber(groups.back) or 0)
    local found = redis.call('ZRANGEBYSCORE', due_key, int(from), '(inf',
      'WITHSCORES', 'LIMIT', 0, BACK + 1)
    local dues = {}
    for i = 1, math.min(#found, 2 * BACK), 2 do
      dues[#dues + 1], dues[#dues + 2] = int(due_of(found[i + 1])), found[i]
    end
    if #dues > 0 then
      redis.call('ZADD', due_key, unpack(dues))
    end
    groups.back = #found > 2 * BACK and int(due_of(found[2 * BACK + 2])) or '-'
  end

  -- After a change of the terms: parked groups take turns again, because they may start more jobs
  -- now. If they are too many for one call, all turns are forgotten, and the jobs come back
  -- instead.
  function it.unpark_all()
    local found = redis.call('ZRANGEBYSCORE', groups.turns_key, int(groups.PARKED),
      '(' .. int(groups.ALARM), 'WITHSCORES', 'LIMIT', 0, MOST_UNPARKED + 1)
    if #found > 2 * MOST_UNPARKED then
      redis.call('UNLINK', groups.turns_key)
      groups.back = '0'
      return
    end
    local turns = {}
    for i = 1, #found, 2 do
      local tag = tonumber(found[i + 1]) - groups.PARKED
      turns[i] = string.format('%.17g', math.max(groups.tag, tag))
      turns[i + 1] = found[i]
    end
    redis.call('ZREMRANGEBYSCORE', groups.turns_key, int(groups.ALARM), '(inf')
    if #turns > 0 then
      redis.call('ZADD', groups.turns_key, unpack(turns))
    end
  end

  -- One step of the census: notes the groups of some leases.
  function it.count_leases(shadow_key, lease_key)
    local page = redis.call('HSCAN', lease_key, groups.census, 'COUNT', CENSUS)
    local entries = {}
    for i = 1, #page[2], 2 do
      local id, lease = page[2][i], page[2][i + 1]
      local token, rest = string.match(lease, '^([^ @]*)[^ ]*( .*)$')
      -- The placeholder of a cluster is no lease.
      if token and id ~= ':' then
        local record = groups.needs_records and redis.call('HGET', shadow_key, id)
        local group = groups_of(groups, {id}, {record or ''})[1]
        redis.call('HSET', lease_key, id, token .. '@' .. group .. rest)
        entries[#entries + 1], entries[#entries + 2] = 0, group .. '\0r\0' .. id
      end
    end
    if #entries > 0 and groups.most > 0 then
      redis.call('ZADD', groups.entries_key, unpack(entries))
    end
    groups.census = page[1] ~= '0' and page[1] or '-'
  end

  return it
end
