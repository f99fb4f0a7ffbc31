-- limit: sets or removes the limit of a ledger.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
--       2 lanes   keyfall:{app:module:biz/0}:lanes
--       3 history keyfall:{app:module:biz/0}:history
--       4 due     keyfall:{app:module:biz/0}:due
--       5 shadow  keyfall:{app:module:biz/0}:shadow
--       6 lease   keyfall:{app:module:biz/0}:lease
--       7 leased  keyfall:{app:module:biz/0}:leased
-- ARGV  1 lane, 2 number, 3 who, 4 wake channel, 5 subject (app:module:biz/0), 6 gap: the µs
--       between two starts in the long run, zero without a rate, 7 burst: how many jobs may start
--       at once, 8 most: how many leases there may be at once, zero for any number, 9 rule: the
--       time at which it was set, Unix ms, a blank, and what people are told of it, 10 by: where
--       the group of a job is found, as in `lib/groups.lua`, empty without groups, 11 gap of a
--       group, 12 burst of a group, 13 most of a group, 14 weights: `name=weight name=weight`, the
--       names encoded. All gaps and mosts are zero, and by is empty, to remove the limit. 15 units,
--       16 leases: the share of this ledger, as in `lib/share.lua`, if several ledgers share the
--       limit, else empty; gap, burst and most are those of the whole limit then, 17 whole: when
--       that was set, Unix ms
-- Reply {'ok', now µs, answers} or {'late', now µs}; answers, one word:
--       limited  this limit holds from now on, or none
--       kept     a newer limit holds already: nothing was done
-- Holds: while Redis is full, refused before anything is written. Starts before a change count
--       after it as well; a hold ends with it. A removed limit leaves its time, so that an older
--       one does not come back. A ledger that has a share of this limit already keeps it; one that
--       has all of it has all shares. If the groups are found elsewhere from now on, or nowhere,
--       the next claims take back the jobs that were set aside, and find the groups of the leases,
--       some with each claim.

local calls_key, lanes_key, history_key = KEYS[1], KEYS[2], KEYS[3]
local due_key, shadow_key, lease_key, leased_key = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local lane, number = ARGV[1], tonumber(ARGV[2])
local now, stamp = now_us()

local past, known, history, _, before = past_reply(calls_key, lane, number, stamp)
if past then
  return past
end

local answers = {}
local held = read_limit(before) or {full = now, rest = ' 0 '}

local function set_at(rest)
  return tonumber(string.match(rest, '^ (%d+)')) or 0
end

if set_at(held.rest) > set_at(' ' .. ARGV[9]) then
  answers[1] = 'kept'
  remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, answers[1])
  return {'ok', stamp, answers[1]}
end
-- Whether the ledger has this limit, and by the same split over the shards.
local function is_held()
  local groups = ARGV[10] ~= '' and table.concat(ARGV, ' ', 10, 13) .. ' ' or ''
  return held.rest == ' ' .. ARGV[9] and (held.share and true or ARGV[15] == ''
    and held.gap == tonumber(ARGV[6]) and held.burst == tonumber(ARGV[7])
    and held.most == tonumber(ARGV[8])
    and string.sub(held.groups or '', 1, #groups) == groups)
end

if is_held() then
  -- It holds already. Each client says so that uses the kind for the first time, and workers do now
  -- and then, in case that the ledger has lost it.
  answers[1] = 'limited'
  remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, answers[1])
  -- The ledger may have been removed meanwhile, and its memory would expire, with the limit in it.
  keep_for_good(calls_key, lanes_key)
  return {'ok', stamp, answers[1]}
end
local limit = {
  full = held.full,
  gap = tonumber(ARGV[6]),
  burst = tonumber(ARGV[7]),
  most = tonumber(ARGV[8]),
  hold = held.rest == ' ' .. ARGV[9] and held.hold or 0,
  rest = ' ' .. ARGV[9],
}

-- The share of this ledger of a limit over several ledgers.
local function new_share(old)
  local is_same = old and old.rule == ARGV[17] or held.rest == limit.rest
  local units, leases = tonumber(ARGV[15]), tonumber(ARGV[16])
  if is_same then
    units = old and old.of_units or limit.burst
    leases = old and old.of_leases or limit.most
  end
  local running = redis.call('ZCOUNT', leased_key, '-inf', '(inf')
  return {
    -- A look that began before this ledger did has seen another share.
    epoch = old and old.epoch or now,
    by = old and old.by or '-',
    rule = ARGV[17],
    gap = limit.gap * limit.burst,
    units = limit.burst,
    leases = limit.most,
    of_units = units,
    of_leases = leases,
    bound = math.max(leases, is_same and old and old.bound or running),
    since = is_same and old and old.since or math.floor(now / 1000),
    owed = 0,
  }
end
if ARGV[15] ~= '' then
  local old = held.share and read_share(held.share)
  local used = 0
  if old then
    used = starts_used(held, old, now)
  elseif held.gap and held.gap > 0 then
    used = math.max(0, math.min((held.full - now) / held.gap, held.burst))
  end
  write_share(limit, new_share(old))
  -- What was used before is used of the new units, or passed on with the next look.
  limit.full = now + math.ceil(used * limit.gap)
end

-- The groups after the change: their new terms, and what the old ones have left behind. Jobs that
-- were set aside by another rule come back, and leases get their new groups. Also returns whether
-- the turns are begun anew, and whether the rates are.
local function changed_groups()
  local old = held.groups and open_groups(held, due_key, now, int, starts_left)
  if ARGV[10] == '' and not old then
    return nil
  end
  local by = ARGV[10] ~= '' and ARGV[10] or '-'
  local terms = by ~= '-' and {by, ARGV[11], ARGV[12], ARGV[13]} or {by, '0', '0', '0'}
  local is_other = not old or old.by ~= by
  -- Leases that do not count any more would leave their entries behind.
  local is_anew = is_other or old.most > 0 and terms[4] == '0'
  local census = not is_other and old.census or '-'
  if by ~= '-' and (is_other or old.most == 0 and terms[4] ~= '0') then
    census = '0'
  end
  local back = old and (is_anew and '0' or old.back) or '-'
  local tag = old and string.format('%.17g', old.tag) or '0'
  local weights = by ~= '-' and ARGV[14] ~= '' and ' ' .. ARGV[14] or ''
  limit.groups = table.concat(terms, ' ') .. ' ' .. back .. ' ' .. census .. ' ' .. tag .. ' '
    .. int(old and not is_other and old.till or 0)
    .. (old and old.waits and not is_anew and ' 1' or ' 0') .. weights
  return open_groups(limit, due_key, now, int, starts_left), is_anew, is_other
end

-- A key of another type is found before anything is written.
redis.call('ZCARD', due_key)
redis.call('ZCARD', leased_key)
redis.call('HLEN', shadow_key)
redis.call('HLEN', lease_key)
local groups, is_anew, is_other = changed_groups()
local story = new_story(history)
tell_of_kind(story, (limit.gap + limit.most > 0 or ARGV[10] ~= '') and 'limited' or 'unlimited')
answers[1] = 'limited'
-- The first write is one that a full Redis refuses.
redis.call('HSET', calls_key, 'limit', write_limit(limit))
if groups then
  local changes = open_entries(groups, due_of, groups_of)
  if is_anew then
    redis.call('UNLINK', groups.entries_key, groups.turns_key)
  end
  if is_other then
    redis.call('UNLINK', groups.rates_key)
  end
  if not (limit.share and held.share and read_share(held.share).rule == ARGV[17]) then
    -- Other ledgers may have these shares by now.
    redis.call('UNLINK', string.sub(due_key, 1, -4) .. 'shares')
  end
  if groups.back ~= '-' then
    changes.bring_back()
  end
  if groups.census ~= '-' then
    changes.count_leases(shadow_key, lease_key)
  end
  -- Whatever is parked may start by the new terms.
  changes.unpark_all()
  limit.groups = (groups.by or groups.back ~= '-') and groups.text() or nil
  redis.call('HSET', calls_key, 'limit', write_limit(limit))
end
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, answers[1])
keep_for_good(calls_key, lanes_key)
-- There may be room by now for jobs that nobody announces any more.
redis.pcall('PUBLISH', ARGV[4], 'flood ' .. ARGV[5])
write_story(story, history_key, ARGV[3])
return {'ok', stamp, answers[1]}
