-- allot: reads the shares that a ledger has of the limits of groups, and changes them.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
--       2 due     keyfall:{app:module:biz/0}:due
--       3 shadow  keyfall:{app:module:biz/0}:shadow
--       4 lease   keyfall:{app:module:biz/0}:lease
--       5 leased  keyfall:{app:module:biz/0}:leased
-- ARGV  1 epoch, 2 caller: the number and the name of the look, 3 limit: when it was set, Unix
--       ms, 4 wake channel, 5 subject (app:module:biz/0), 6 most: how many groups to name that wait
--       for a share; then for each group: its name, units, leases: the new share, both empty to
--       leave it as it is, owed: the millionths of a start that the added units have used, left:
--       0 to forget what is used of removed units, else empty
-- Reply {'ok', now µs, answers, census, waiting, units, leases, running, used, waits, since,
--       owed, …}; answers, one word:
--       shared       the rest is true from now on: census is 1 while leases are not yet counted,
--                    waiting has the names of groups that wait for a share, those that were looked
--                    at longest ago first; then for each group of the call: units and leases are
--                    its share, running how many leases there are, used how many of its units are
--                    in use, waits how many jobs wait for a share, since is when it got its share
--                    or lost it, Unix ms, and owed the millionths of a start that are used of
--                    units which were removed
--       newer:epoch  a look with this number was faster: nothing was done
--       absent       the ledger has no share of this limit, or no groups: nothing was done
-- Holds: from then on, a call with an older epoch changes nothing. Removed units that are in use
--       start nothing, and are owed until a call says otherwise. May be repeated. Works while Redis
--       is full.

local HEAD, EACH = 6, 5
-- How many jobs of a group are announced at the most.
local EACH_ANNOUNCED = 8

local calls_key, due_key, shadow_key, lease_key, leased_key =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local epoch, by, rule = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local now, stamp = now_us()
local now_ms = math.floor(now / 1000)

-- A key of another type is found before anything is written.
redis.call('ZCARD', due_key)
redis.call('ZCARD', leased_key)
redis.call('HLEN', shadow_key)
redis.call('HLEN', lease_key)
local of_kind = redis.call('HMGET', calls_key, 'limit', 'paused')
local limit = of_kind[1] and read_limit(of_kind[1])
local share = limit and limit.share and read_share(limit.share)
local groups = share and limit.groups and open_groups(limit, due_key, now, int, starts_left)
local answers = {}
if not (groups and groups.by) or share.rule ~= rule then
  answers[1] = 'absent'
elseif share.epoch > epoch or share.epoch == epoch and share.by ~= by then
  answers[1] = 'newer:' .. int(share.epoch)
end
if answers[1] then
  return {'ok', stamp, answers[1], 0, ''}
end
answers[1] = 'shared'
if share.epoch ~= epoch then
  share.epoch, share.by, share.owed = epoch, by, 0
  write_share(limit, share)
end
local may_start = not is_paused(of_kind[2]) and not is_on_hold(limit, now)
local entries = open_entries(groups, due_of, groups_of)

-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('HDEL', calls_key, '')
if groups.census ~= '-' then
  -- Nobody may claim here who would count them.
  entries.count_leases(shadow_key, lease_key)
end

local names, shares, asking = {}, {}, {}
for i = HEAD + 1, #ARGV, EACH do
  names[#names + 1], asking[#asking + 1] = ARGV[i], '?' .. ARGV[i]
end
local fulls, found, marks = {}, {}, {}
if #names > 0 then
  fulls = redis.call('ZMSCORE', groups.rates_key, unpack(names))
  found = redis.call('HMGET', groups.shares_key, unpack(names))
  marks = redis.call('ZMSCORE', groups.turns_key, unpack(asking))
end

local function has_part(units, leases)
  return (groups.gap == 0 or units > 0) and (groups.most == 0 or leases > 0)
end

-- The share of a group, changed as the call says. What was used of it is kept in starts.
local function look_at(i)
  local units, leases, owed, left = unpack(ARGV, HEAD + EACH * i - 3, HEAD + EACH * i)
  local name, rate = names[i], groups.rate_of(fulls[i], found[i])
  local it = {name = name, units = rate.burst, leases = rate.most, rate = rate,
    since = tonumber(string.match(found[i] or '', ' (%d+)$')) or 0, used = 0, full = rate.full}
  if rate.gap > 0 then
    it.used = math.max(0, math.min((rate.full - now) / rate.gap, groups.burst))
  end
  if units ~= '' then
    local had = has_part(it.units, it.leases)
    if tonumber(units) > it.units then
      it.used = math.min(it.used + tonumber(owed) / 1e6, groups.burst)
      it.is_raised = true
    end
    it.is_raised = it.is_raised or tonumber(leases) > it.leases
    it.units, it.leases = tonumber(units), tonumber(leases)
    if has_part(it.units, it.leases) ~= had then
      -- By the clock of the look: it compares the ledgers.
      it.since = math.floor(epoch / 1000)
    end
  end
  if left ~= '' then
    -- Another ledger owes it by now.
    it.used = math.min(it.used, it.units)
  end
  it.is_changed = units ~= '' or left ~= '' or rate.is_cut
  return it
end

local function count_of(name, from, to)
  return redis.call('ZLEXCOUNT', groups.entries_key, '[' .. name .. from, '(' .. name .. to)
end

local latest, dues, fields, done, later, freed, stopped = now, {}, {}, {}, {}, {}, {}
for i, name in ipairs(names) do
  local it = look_at(i)
  shares[i] = it
  if it.is_changed then
    local text = int(it.units) .. ' ' .. int(it.leases) .. ' ' .. int(it.since)
    it.rate = groups.rate_of(now, text)
    it.rate.full = now + math.ceil(it.used * it.rate.gap)
    latest = math.max(latest, it.rate.full)
    dues[#dues + 1], dues[#dues + 2] = int(it.rate.full), name
    fields[#fields + 1], fields[#fields + 2] = name, text
  end
  it.running = groups.most > 0 and count_of(name, '\0r', '\0s') or 0
  -- A takeover needs a start, and its job is not in the turns.
  it.queued = count_of(name, '\0w', '\0x')
  local waits = marks[i] and it.queued == 0 and groups.gap > 0 and 1 or it.queued
  local starts = groups.gap > 0 and starts_left({full = it.rate.full, gap = it.rate.gap,
    burst = it.rate.burst, hold = 0}, now) or math.huge
  local leases = groups.most > 0 and it.leases - it.running or math.huge
  it.room = math.max(0, math.min(starts, leases))
  -- Jobs that nobody takes although they may start need no share.
  it.waits = may_start and (it.room == 0 or it.running > 0 or it.used > 0)
    and math.max(0, waits - it.room) or 0
  local is_whole = (groups.gap == 0 or it.units == groups.burst)
    and (groups.most == 0 or it.leases == groups.most)
  if marks[i] and (it.waits == 0 or is_whole) then
    done[#done + 1] = '?' .. name
  elseif marks[i] then
    later[#later + 1], later[#later + 2] = int(groups.WANTS + now_ms), '?' .. name
  end
  if it.is_raised then
    done[#done + 1] = '=' .. name
  end
  if it.is_raised and it.queued > 0 and starts == 0 and leases > 0 and it.units > 0 then
    stopped[#stopped + 1] = it
  elseif it.is_raised or marks[i] and it.waits == 0 and it.queued > 0 then
    -- Without a mark the next claim has to see again whether it needs a share.
    freed[#freed + 1] = name
  end
end

if #fields > 0 then
  redis.call('HSET', groups.shares_key, unpack(fields))
  redis.call('ZADD', groups.rates_key, unpack(dues))
  groups.keep_till(latest, true)
end
if #done > 0 then
  redis.call('ZREM', groups.turns_key, unpack(done))
end
if #later > 0 then
  redis.call('ZADD', groups.turns_key, 'XX', unpack(later))
end
-- What was used of the new units allows the next start later.
if #stopped > 0 then
  local stopped_names, turns, first = {}, {}, math.huge
  for i, it in ipairs(stopped) do
    stopped_names[i] = it.name
  end
  for i, tag in ipairs(redis.call('ZMSCORE', groups.turns_key, unpack(stopped_names))) do
    if tag then
      local alarm = next_start(stopped[i].rate, now)
      tag, first = tonumber(tag), math.min(first, alarm)
      tag = tag < groups.PARKED and tag + groups.PARKED or tag
      turns[#turns + 1], turns[#turns + 2] = string.format('%.17g', tag), stopped_names[i]
      turns[#turns + 1], turns[#turns + 2] = int(groups.ALARM + alarm), '=' .. stopped_names[i]
    end
  end
  if #turns > 0 then
    redis.call('ZADD', groups.turns_key, unpack(turns))
    redis.pcall('PUBLISH', ARGV[4], 'held ' .. ARGV[5] .. ' ' .. int(first))
  end
end
if #freed > 0 then
  local room = math.min(room_for_due(limit, leased_key, now), ANNOUNCED)
  local entries_of, news = {}, {}
  local is_freed = {}
  for _, name in ipairs(entries.unparked(freed)) do
    is_freed[name] = true
  end
  for _, it in ipairs(shares) do
    local wanted = math.min(room, it.room, EACH_ANNOUNCED)
    if it.is_raised and is_freed[it.name] and wanted > 0 then
      entries_of[it.name] = entries.first_waiting(it.name, wanted)
    end
  end
  for _, jobs in pairs(entries.checked(entries_of, {})) do
    for _, job in ipairs(jobs) do
      news[#news + 1] = #news < room and job.id or nil
    end
  end
  wake(ARGV[4], ARGV[5], news, nil, now)
end
limit.groups = groups.text()
redis.call('HSET', calls_key, 'limit', write_limit(limit))

local waiting, most = {}, tonumber(ARGV[6])
for i, name in ipairs(most > 0 and redis.call('ZRANGEBYSCORE', groups.turns_key,
  int(groups.WANTS), '(inf', 'LIMIT', 0, most) or {}) do
  waiting[i] = string.sub(name, 2)
end
local reply = {'ok', stamp, answers[1], groups.census ~= '-' and 1 or 0, table.concat(waiting, ' ')}
for _, it in ipairs(shares) do
  local owed = math.ceil(math.max(0, it.used - it.units) * 1e6)
  for _, value in ipairs({it.units, it.leases, it.running, math.ceil(it.used), it.waits, it.since,
    owed}) do
    reply[#reply + 1] = int(value)
  end
end
return reply
