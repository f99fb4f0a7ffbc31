-- The claim of a kind with groups while none of its jobs has to wait for a turn. `groups` comes
-- from `open_groups`.

-- Whether jobs from everywhere in the backlog are of groups that these jobs are of, or of one
-- group: one job for each eight that are wanted. They are neighbours, of four places at equal
-- distances, which are others in each claim.
local function meets_again(groups, count_of, all_due, seen, most, shadow_key)
  local sample, step = {}, (all_due - seen) / 4
  for i = 0, 3 do
    local rank = seen + math.floor(i * step + groups.now % math.ceil(step))
    local some = redis.call('ZRANGE', groups.due_key, rank, rank + math.ceil(most / 32) - 1)
    for j = 1, #some do
      sample[#sample + 1] = some[j]
    end
  end
  local records = groups.needs_records and read_records(shadow_key, sample, 4 * 1024 * 1024)
  local names = groups_of(groups, sample, records or {})
  for i = 1, records and #records or #sample do
    if count_of[names[i]] then
      return true
    end
    count_of[names[i]] = 0
  end
  return false
end

-- The scores of `rates` after these groups have started so many jobs, as from `scores_of`, and
-- their numbers of leases, if several ledgers share these; nil if a rate does not allow the jobs.
local function scores_if_allowed(groups, known, count_of)
  local now, scores, most_of = groups.now, {latest = groups.now}, {}
  local fulls = (groups.gap > 0 or groups.shares_key)
    and redis.call('ZMSCORE', groups.rates_key, unpack(known)) or {}
  local shares = groups.shares_key and redis.call('HMGET', groups.shares_key, unpack(known)) or {}
  local bound, its_full, its_score = now + groups.gap * groups.burst, nil, nil
  for i = 1, #fulls do
    local group, full = known[i], fulls[i] and tonumber(fulls[i]) or 0
    if groups.shares_key then
      local rate = groups.rate_of(full, shares[i])
      most_of[group] = rate.most
      if groups.starts_left(rate, now) < count_of[group] then
        return nil
      end
      use_starts(rate, now, count_of[group])
      full = rate.full > now and rate.full or now
    else
      -- As `starts_left` and `use_starts`, without a table for each group.
      full = (full > now and full or now) + groups.gap * count_of[group]
      if full > bound then
        return nil
      end
    end
    if full ~= its_full then
      its_full, its_score = full, groups.int(full)
      scores.latest = full > scores.latest and full or scores.latest
    end
    scores[2 * i - 1], scores[2 * i] = its_score, group
  end
  return scores, most_of
end

-- Whether these groups may have so many leases beside those that they have. Changes `count_of`.
local function have_room(groups, known, count_of, most_of)
  -- Reading a lease costs a quarter of counting those of a group.
  local leases = redis.call('ZCARD', groups.entries_key) <= 4 * #known
    and redis.call('ZRANGE', groups.entries_key, 0, -1)
  for i = 1, leases and #leases or 0 do
    local group = string.sub(leases[i], 1, string.find(leases[i], '\0', 1, true) - 1)
    local count = count_of[group]
    if count then
      count_of[group] = count + 1
    end
  end
  for i = 1, #known do
    local group = known[i]
    local count = count_of[group]
    if not leases then
      count = count + redis.call('ZLEXCOUNT', groups.entries_key, '[' .. group .. '\0r',
        '(' .. group .. '\0s')
    end
    if count > (most_of[group] or groups.most) then
      return false
    end
  end
  return true
end

-- The claim of due jobs of which none has to wait: no group waits for its turn, the limits of their
-- groups allow them, and either all due jobs have room in the call, or the oldest 64 are of
-- different groups, so that none gets much more than its turn. If more jobs are due than `BURST`, a
-- new group would wait too long behind a backlog in which each group has several jobs: then jobs
-- from everywhere in the backlog have to be of different groups, too. Returns the ids, due times,
-- records and groups of the jobs, and the new scores of `rates`, for `write_starts`; nil in any
-- other case, which `lib/turns.lua` handles.
local function take_at_once(groups, wanted, shadow_key, leased_key)
  local now_ms, int = math.floor(groups.now / 1000), groups.int
  local most, SEEN, BURST = math.min(wanted, 256), 64, 2048
  local found = redis.call('ZRANGEBYSCORE', groups.due_key, '-inf', int(now_ms), 'WITHSCORES',
    'LIMIT', 0, math.max(most, SEEN) + 1)
  local ids, dues = {}, {}
  for i = 1, #found / 2 do
    ids[i], dues[i] = found[2 * i - 1], found[2 * i]
  end
  local is_all = #ids <= most
  -- Records are large, and few of them would be handed out.
  if #ids == 0 or not is_all and (groups.weights ~= '' or groups.needs_records and most < SEEN) then
    return nil
  end
  local all_due = is_all and #ids
    or redis.call('ZCOUNT', groups.due_key, '-inf', int(now_ms))
  local function cut(list, size)
    for i = #list, size + 1, -1 do
      list[i] = nil
    end
  end
  cut(ids, math.max(most, SEEN))
  local records = groups.needs_records and read_records(shadow_key, ids, 4 * 1024 * 1024)
  if records and #records < #ids then
    return nil
  end
  local names = groups_of(groups, ids, records or {})
  local count_of, known, groups_known, fits = {}, {}, 0, #ids
  for i = 1, #names do
    local group = names[i]
    local count = count_of[group]
    if not count then
      groups_known = groups_known + 1
      known[groups_known] = group
    elseif not is_all then
      fits = i - 1
      break
    end
    count_of[group] = (count or 0) + 1
  end
  if fits < math.min(#ids, SEEN) then
    return nil
  end
  if all_due > BURST and meets_again(groups, count_of, all_due, #ids, most, shadow_key) then
    return nil
  end
  fits = math.min(fits, most)
  cut(ids, fits)
  cut(names, fits)
  if not is_all then
    cut(known, fits)
  end
  records = records or read_records(shadow_key, ids, 4 * 1024 * 1024)
  if #records < #ids then
    return nil
  end
  cut(dues, fits)
  cut(records, fits)
  -- Lapsed leases keep starts for their takeover.
  if groups.gap > 0 and redis.call('ZCOUNT', leased_key, int(now_ms - 60000), int(now_ms)) > 0 then
    return nil
  end
  local scores, most_of = scores_if_allowed(groups, known, count_of)
  if not scores or groups.most > 0 and not have_room(groups, known, count_of, most_of) then
    return nil
  end
  return ids, dues, records, names, scores
end
