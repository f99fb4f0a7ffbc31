-- The claim of a kind with groups: which jobs start, by the turns of their groups. `groups` comes
-- from `open_groups`. First all that is read is chosen from in Lua; the writes come afterwards,
-- together.
--
-- A queue is a group of which jobs may start: its tag, its waiting jobs from `first` on, how many
-- it has `started` here, and how many `starts` and `leases` its limit still allows.

local function open_turns(groups, shadow_key, leased_key, lease_key)
  -- How many due jobs a claim sets aside. How many groups it looks at for a job that may start. How
  -- many waiting jobs of a group are read at once, at the most. How many leases of a group are
  -- checked before it is parked. How many stale entries are met before the rest waits for the next
  -- claim: Lua cannot unpack 8,000, and Redis serves nobody else meanwhile. The limits of
  -- lib/lease.lua and lib/limit.lua.
  local ASIDE_AT_ONCE, MOST_TURNS, MOST_JOBS, CHECKED_LEASES, MOST_STALE = 128, 128, 64, 16, 1000
  local REPLY_BYTES, TAKEOVER_MS = 4 * 1024 * 1024, 60000

  local it = {picks = {}, stale = {}, is_cut = false}
  local queues, queue_of, heap, reserved = {}, {}, {}, nil
  local newly_aside, has_turns, had_back, unread, asking = {}, false, false, false, {}
  local int, now, due_key = groups.int, groups.now, groups.due_key
  local starts_left = groups.starts_left
  local entries = open_entries(groups, due_of, groups_of)
  local PARKED, ALARM, ASIDE = groups.PARKED, groups.ALARM, groups.ASIDE
  local now_ms = math.floor(now / 1000)

  local function comes_first(one, other)
    return one.tag < other.tag or one.tag == other.tag and one.number < other.number
  end

  local function push(queue)
    local at = #heap + 1
    while at > 1 and comes_first(queue, heap[math.floor(at / 2)]) do
      heap[at], at = heap[math.floor(at / 2)], math.floor(at / 2)
    end
    heap[at] = queue
  end

  local function pop()
    local top, last = heap[1], table.remove(heap)
    local at, size = 1, #heap
    while size > 0 do
      local child = 2 * at
      if child < size and comes_first(heap[child + 1], heap[child]) then
        child = child + 1
      end
      if child > size or not comes_first(heap[child], last) then
        heap[at] = last
        break
      end
      heap[at], at = heap[child], child
    end
    return top
  end

  local function weight_of(group)
    local _, behind = string.find(groups.weights, ' ' .. group .. '=', 1, true)
    local weight = behind and tonumber(string.match(groups.weights, '^[%d.]+', behind + 1))
    return weight and weight > 0 and weight or 1
  end

  local function new_queue(group, tag)
    local queue = {group = group, tag = tag, number = #queues + 1, jobs = {}, first = 1,
      started = 0, running = 0, weight = groups.weights == '' and 1 or weight_of(group)}
    queues[#queues + 1], queue_of[group] = queue, queue
    return queue
  end

  -- Lapsed leases keep a start of their group for their takeover, as those of a kind do.
  local function reserve()
    reserved = {}
    local lapsed = redis.call('ZRANGEBYSCORE', leased_key, int(now_ms - TAKEOVER_MS), int(now_ms),
      'LIMIT', 0, MOST_JOBS)
    for _, lease in ipairs(#lapsed > 0 and redis.call('HMGET', lease_key, unpack(lapsed)) or {}) do
      local group = lease and groups.group_in(lease)
      if group then
        reserved[group] = (reserved[group] or 0) + 1
      end
    end
  end

  -- A group at its limit of leases: those that are gone do not count. Some other program, or an
  -- older version, may have ended them.
  local function recount(queue)
    local group = queue.group
    local found = redis.call('ZRANGEBYLEX', groups.entries_key, '[' .. group .. '\0r',
      '(' .. group .. '\0s', 'LIMIT', 0, CHECKED_LEASES)
    local ids = {}
    for i, entry in ipairs(found) do
      ids[i] = string.sub(entry, #group + 4)
    end
    local leases = #ids > 0 and redis.call('HMGET', lease_key, unpack(ids)) or {}
    for i, entry in ipairs(found) do
      if not leases[i] or groups.group_in(leases[i]) ~= group then
        it.stale[#it.stale + 1] = entry
        queue.running = queue.running - 1
      end
    end
  end

  -- What the limits of these queues allow, and puts those that may start a job in order.
  local function admit(some)
    local names = {}
    for i, queue in ipairs(some) do
      names[i] = queue.group
    end
    local rates = entries.rates_of(names)
    if groups.gap > 0 and not reserved then
      reserve()
    end
    for _, queue in ipairs(some) do
      queue.rate = rates[queue.group]
      if groups.most > 0 and queue.running >= queue.rate.most then
        recount(queue)
      end
      queue.starts = starts_left(queue.rate, now) - (reserved and reserved[queue.group] or 0)
      queue.leases = groups.most > 0 and queue.rate.most - queue.running or math.huge
      push(queue)
    end
  end

  -- The next waiting job of a queue; nil if it has none, or too many stale entries come before it:
  -- then `last` is not nil.
  local function peek(queue)
    while not queue.jobs[queue.first] and queue.last do
      if #it.stale >= MOST_STALE then
        it.is_cut = true
        return nil
      end
      local more = redis.call('ZRANGEBYLEX', groups.entries_key, '(' .. queue.last,
        '(' .. queue.group .. '\0x', 'LIMIT', 0, MOST_JOBS)
      queue.last = #more == MOST_JOBS and more[#more] or nil
      for _, job in ipairs(entries.checked({[queue.group] = more}, it.stale)[queue.group] or {}) do
        queue.jobs[#queue.jobs + 1] = job
      end
    end
    return queue.jobs[queue.first]
  end

  -- Picks jobs of queues with a tag up to `bound`, each the oldest of the least tag.
  local function pick(wanted, bound)
    while #it.picks < wanted and heap[1] and heap[1].tag <= bound do
      local queue = pop()
      local job = peek(queue)
      queue.is_over = not (job and queue.starts > 0 and queue.leases > 0)
      if not queue.is_over then
        it.picks[#it.picks + 1] = {job = job, queue = queue, tag = queue.tag}
        queue.first, queue.started = queue.first + 1, queue.started + 1
        queue.starts, queue.leases = queue.starts - 1, queue.leases - 1
        queue.tag = queue.tag + 1 / queue.weight
        push(queue)
      end
    end
  end

  local function unpick(one)
    local queue = one.queue
    queue.started = queue.started - 1
    queue.starts, queue.leases = queue.starts + 1, queue.leases + 1
    queue.tag, queue.is_over = queue.tag - 1 / queue.weight, false
  end

  -- Groups whose rate allows a start again take turns with the others.
  local function wake_groups()
    local woken = redis.call('ZRANGEBYSCORE', groups.turns_key, int(ALARM), int(ALARM + now),
      'LIMIT', 0, MOST_TURNS)
    if #woken == 0 then
      return
    end
    local names = {}
    for i, name in ipairs(woken) do
      names[i] = string.sub(name, 2)
    end
    redis.call('ZREM', groups.turns_key, unpack(woken))
    entries.unparked(names)
    it.is_cut = #woken == MOST_TURNS
  end

  -- Jobs that are due and not aside, the oldest first. If they are too many for one claim, those
  -- that it has named come behind them: they may be of groups that have no others, and need not
  -- wait until a backlog is set aside.
  local function plain_due(named)
    local till = groups.back == '-' and int(now_ms)
      or '(' .. int(math.min(now_ms + 1, tonumber(groups.back)))
    local found = redis.call('ZRANGEBYSCORE', due_key, '-inf', till, 'WITHSCORES', 'LIMIT', 0,
      ASIDE_AT_ONCE)
    local jobs = {}
    for i = 1, #found, 2 do
      jobs[#jobs + 1] = {id = found[i], due = tonumber(found[i + 1])}
    end
    unread = #jobs == ASIDE_AT_ONCE
    local known = {}
    for i = 1, unread and groups.back == '-' and #jobs or 0 do
      known[jobs[i].id] = true
    end
    for _, job in ipairs(next(known) and named or {}) do
      if not job.is_aside and not known[job.id] then
        known[job.id] = true
        jobs[#jobs + 1] = job
      end
    end
    return jobs
  end

  -- Finds the groups of jobs. Returns those whose records fit into a reply; the others come later.
  local function with_groups(jobs)
    local ids, known = {}, {}
    for i, job in ipairs(jobs) do
      ids[i] = job.id
    end
    local records = groups.needs_records and read_records(shadow_key, ids, REPLY_BYTES)
    local names = groups_of(groups, ids, records or {})
    for i = 1, records and #records or #jobs do
      local job = jobs[i]
      job.record, job.group = records and records[i], names[i]
      known[i] = job
    end
    unread = unread or #known < #jobs
    return known
  end

  local function waiting_entry(job)
    local due = int(job.due)
    return job.group .. '\0w\0' .. string.rep('0', 16 - #due) .. due .. '\0' .. job.id
  end

  -- Sets jobs aside, to wait for the turns of their groups. The entries come first: without its job
  -- an entry is only stale.
  local function set_aside(jobs)
    local waiting, turns, dues = {}, {}, {}
    local tag = string.format('%.17g', groups.tag)
    local known = {}
    for _, job in ipairs(jobs) do
      waiting[#waiting + 1] = 0
      waiting[#waiting + 1] = waiting_entry(job)
      dues[#dues + 1], dues[#dues + 2] = int(job.due + ASIDE), job.id
      if not known[job.group] then
        known[job.group] = true
        turns[#turns + 1], turns[#turns + 2] = tag, job.group
      end
    end
    if #jobs > 0 then
      redis.call('ZADD', groups.entries_key, unpack(waiting))
      redis.call('ZADD', groups.turns_key, 'NX', unpack(turns))
      redis.call('ZADD', due_key, unpack(dues))
    end
  end

  -- The waiting jobs and the leases of some groups, from `turns`.
  local function load(page, wanted)
    local some, entries_of = {}, {}
    local chunk = math.min(MOST_JOBS, math.floor(wanted / (#page / 2)) + 2)
    for i = 1, #page, 2 do
      local group = page[i]
      local queue = new_queue(group, tonumber(page[i + 1]))
      some[#some + 1] = queue
      -- The leases come first, so one range has both, if there are few.
      local leases = groups.most <= CHECKED_LEASES and groups.most or 0
      local found = redis.call('ZRANGEBYLEX', groups.entries_key,
        '[' .. group .. (leases > 0 and '\0r' or '\0w'), '(' .. group .. '\0x', 'LIMIT', 0,
        leases + chunk)
      local waiting = {}
      for _, entry in ipairs(found) do
        if string.byte(entry, #group + 2) == 119 then
          waiting[#waiting + 1] = entry
        else
          queue.running = queue.running + 1
        end
      end
      if groups.most > leases then
        queue.running = redis.call('ZLEXCOUNT', groups.entries_key, '[' .. group .. '\0r',
          '(' .. group .. '\0s')
      end
      queue.last = #found == leases + chunk and (waiting[#waiting] or group .. '\0w') or nil
      entries_of[group] = waiting
    end
    local jobs_of = entries.checked(entries_of, it.stale)
    for _, queue in ipairs(some) do
      queue.jobs = jobs_of[queue.group] or {}
    end
    admit(some)
  end

  -- Picks by turn: the groups with the least tags, a page at a time.
  local function pick_by_turn(wanted, size)
    local looked = 0
    while true do
      local page = redis.call('ZRANGEBYSCORE', groups.turns_key, '-inf', '(' .. int(PARKED),
        'WITHSCORES', 'LIMIT', looked, size)
      if #page == 0 then
        pick(wanted, math.huge)
        return
      end
      looked = looked + #page / 2
      load(page, wanted)
      local is_last = #page < 2 * size
      pick(wanted, is_last and math.huge or tonumber(page[#page]))
      if is_last or #it.picks == wanted then
        return
      elseif looked >= MOST_TURNS then
        it.is_cut = true
        return
      end
    end
  end

  -- Picks from a list of jobs. None of their groups has older ones, or the caller does not want
  -- them.
  local function pick_from(jobs, wanted)
    local some, names = {}, {}
    for _, job in ipairs(jobs) do
      local queue = queue_of[job.group]
      if not queue then
        queue = new_queue(job.group, groups.tag)
        some[#some + 1], names[#names + 1] = queue, job.group
      end
      queue.jobs[#queue.jobs + 1] = job
    end
    if #some == 0 then
      return
    end
    local scores = has_turns and redis.call('ZMSCORE', groups.turns_key, unpack(names)) or {}
    for i, queue in ipairs(some) do
      local score = tonumber(scores[i] or nil)
      queue.has_others = score ~= nil
      queue.tag = score and score % PARKED or groups.tag
      if groups.most > 0 then
        queue.running = redis.call('ZLEXCOUNT', groups.entries_key, '[' .. queue.group .. '\0r',
          '(' .. queue.group .. '\0s')
      end
    end
    admit(some)
    pick(wanted, math.huge)
  end

  -- Reads the records of the picked jobs. Jobs that do not fit into the reply stay.
  local function read_picked()
    local ids = {}
    for i, one in ipairs(it.picks) do
      ids[i] = one.job.id
    end
    local records = {}
    if it.picks[1] and not it.picks[1].job.record then
      records = read_records(shadow_key, ids, REPLY_BYTES)
    else
      for i, one in ipairs(it.picks) do
        records[i] = one.job.record
      end
    end
    for i = #it.picks, #records + 1, -1 do
      local queue = it.picks[i].queue
      queue.first = queue.first - 1
      unpick(it.picks[i])
      it.is_cut, it.picks[i] = true, nil
    end
    for i, one in ipairs(it.picks) do
      one.record = records[i]
      groups.tag = math.max(groups.tag, one.tag)
    end
  end

  -- Chooses up to `wanted` jobs. `named` has the due jobs that the caller has named, and with
  -- `only_named` no others are chosen; `knows_aside` says that one of them is aside.
  function it.choose(wanted, named, only_named, knows_aside)
    local size = math.max(4, math.min(wanted, MOST_JOBS))
    has_turns = groups.waits and #redis.call('ZRANGE', groups.turns_key, 0, 0) > 0
    if knows_aside and not has_turns and groups.back == '-' then
      -- The turns were lost.
      groups.back = '0'
    end
    if has_turns or groups.back ~= '-' then
      -- A full Redis lets a script run on if its first write is a removal, even an empty one.
      redis.call('ZREM', due_key, '')
    end
    if has_turns and groups.gap > 0 then
      wake_groups()
    end
    had_back = groups.back ~= '-'
    if had_back then
      entries.bring_back()
    end
    if only_named then
      table.sort(named, function(one, other)
        return one.due < other.due or one.due == other.due and one.id < other.id
      end)
      newly_aside = with_groups(named)
      pick_from(newly_aside, wanted)
    elseif has_turns then
      set_aside(with_groups(plain_due(named)))
      pick_by_turn(wanted, size)
    else
      -- Nothing waits yet: what starts at once need not be set aside.
      newly_aside = with_groups(plain_due(named))
      pick_from(newly_aside, wanted)
    end
    read_picked()
  end

  -- Where a group goes after this claim: its score, or nil if it leaves the turns.
  local function write_turn(queue, turns, left)
    local waits = peek(queue) or queue.last or queue.has_others
    local score, rate = queue.tag, queue.rate
    if waits and (queue.leases <= 0 and rate.most < groups.most
      or queue.starts <= 0 and rate.burst < groups.burst) then
      -- Other ledgers have a part of its limit.
      asking[#asking + 1] = queue.group
    end
    if not waits and queue.started == 0 then
      left[#left + 1] = queue.group
      return
    elseif waits and queue.leases <= 0 then
      score = score + PARKED
    elseif waits and queue.starts <= 0 then
      score = score + PARKED
      if rate.burst > 0 then
        local after = {full = rate.full, gap = rate.gap, burst = rate.burst, hold = 0}
        use_starts(after, now, queue.started)
        local alarm = next_start(after, now)
        if alarm == 0 then
          -- Lapsed leases keep the starts for their takeover.
          alarm = now + 100000
        end
        turns[#turns + 1], turns[#turns + 2] = int(ALARM + alarm), '=' .. queue.group
        it.has_alarm = true
      end
    end
    turns[#turns + 1], turns[#turns + 2] = string.format('%.17g', score), queue.group
  end

  -- No job waits any more. Groups whose last jobs were cancelled, for example, may still have
  -- entries for these: then all entries go, and a census finds those of the leases again.
  local function forget_turns()
    redis.call('UNLINK', groups.turns_key)
    local leases = groups.most > 0 and redis.call('ZCARD', leased_key) or 0
    if redis.call('ZCARD', groups.entries_key) > leases then
      redis.call('UNLINK', groups.entries_key)
      groups.census = groups.most > 0 and '0' or '-'
    end
  end

  -- Writes what was chosen, after the jobs have left `due`.
  function it.write()
    local gone, taken, ids, names = it.stale, {}, {}, {}
    for i, one in ipairs(it.picks) do
      local group, job = one.queue.group, one.job
      taken[job], ids[i], names[i] = true, job.id, group
      gone[#gone + 1] = job.entry or job.is_aside
        and waiting_entry(job)
    end
    local left_over = {}
    for _, job in ipairs(newly_aside) do
      if not taken[job] and not job.is_aside then
        left_over[#left_over + 1] = job
      end
    end
    set_aside(left_over)
    local waits = #left_over > 0 or has_turns
    local turns, left = {}, {}
    for _, queue in ipairs(waits and queues or {}) do
      if queue.started > 0 or queue.is_over then
        write_turn(queue, turns, left)
      end
    end
    if #gone > 0 then
      redis.call('ZREM', groups.entries_key, unpack(gone))
    end
    if #left > 0 then
      redis.call('ZREM', groups.turns_key, unpack(left))
    end
    if #turns > 0 then
      redis.call('ZADD', groups.turns_key, unpack(turns))
    end
    it.asks = entries.ask_for(asking)
    local rates, started = {}, {}
    for _, queue in ipairs(queues) do
      rates[queue.group] = queue.rate
      started[queue.group] = queue.started > 0 and queue.started or nil
    end
    entries.write_cut(rates)
    write_starts(groups, ids, names, scores_of(groups, rates, started))
    if (has_turns or had_back) and #left_over == 0 and groups.back == '-'
      and redis.call('ZCOUNT', due_key, int(ASIDE), '(inf') == 0 then
      forget_turns()
      waits = false
    end
    groups.waits = waits
    it.waits = waits or unread
  end

  -- The jobs of groups with a rate that may start after this claim, one for each that it has
  -- started. They are announced now: their groups wait for no alarm, and perhaps for no end of a lease.
  function it.others()
    local ids = {}
    for _, queue in ipairs(groups.gap > 0 and queues or {}) do
      local at = queue.first
      while #ids < #it.picks and at < queue.first + math.min(queue.starts, queue.leases)
        and (queue.jobs[at] or at == queue.first and peek(queue)) do
        ids[#ids + 1], at = queue.jobs[at].id, at + 1
      end
    end
    return ids
  end

  local function next_alarm()
    local first = redis.call('ZRANGEBYSCORE', groups.turns_key, int(ALARM),
      '(' .. int(groups.WANTS), 'WITHSCORES', 'LIMIT', 0, 1)
    return first[2] and tonumber(first[2]) - ALARM or 0
  end

  -- When to ask again for jobs that wait, µs: now if this claim has not looked at all of them, else
  -- when the rate of a group allows the next start; 0 if the ends of runs announce the others.
  -- If the kind has no room for others, only the rates of groups count.
  function it.next_look(is_full)
    local is_now = not is_full and (it.is_cut or unread or groups.back ~= '-')
    return is_now and now or next_alarm()
  end

  return it
end
