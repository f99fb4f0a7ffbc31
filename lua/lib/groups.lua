-- A kind can have groups, such as tenants or hosts: each has a limit of its own, and they take
-- turns. Behind the limit of the kind, the field `limit` of `calls` has `by gap burst most back
-- census tag till waits name=weight …`:
--
--   by      where the group of a job is found: `id/2` for the second part of the id between
--           slashes, or any other mark than the slash; `header=tenant` for a header of the job, its name
--           encoded as groups are; `-` after the groups were removed
--   gap     burst  most   the limit of each group, as that of a kind in `lib/limit.lua`
--   back    `-`, or a due time: the jobs aside from there on may be in no turn, because the rule
--           has changed or keys were lost. They become plain due jobs again, a few with each claim, the
--           oldest first; until then none from there on is set aside
--   census  the cursor of a search through the leases for the groups of those that were given out
--           before, or whose entries were removed; `-` when it is over. Nothing starts until then
--   tag     the tag of the last start, see below
--   till    when the key `rates` expires, Unix ms
--   waits   1 if the last claim has left something in `turns`, else 0
--   weight  how many starts the group gets for one start of any other group; 1 unless given
--
-- Four keys beside the ledger, which exist only while something is in them:
--
--   groups  sorted set, all scores 0, so that ranges go by name: `group NUL w NUL due NUL id` for
--           each job that waits for its turn, the due time with 16 digits, and `group NUL r NUL id` for
--           each lease, if their number is limited
--   turns   sorted set: group → its tag; or `PARKED` and its tag while its limit lets no job start;
--           `=group` → `ALARM` and the time at which its rate allows the next start, µs;
--           `?group` → `WANTS` and the time since which it waits for a share, ms
--   rates   sorted set: group → when all starts of its burst are free again, µs; if ledgers share the
--           limit, also of groups without a rate: the time of their last start
--   shares  hash, if several ledgers share the limit: group → `units leases since`, the share of this
--           ledger, see below
--
-- The groups take turns by start-time fair queueing. The group with the least tag starts a job, and
-- its tag grows by 1 / weight. A group that comes anew gets the tag of the last start. A group
-- without waiting jobs keeps its tag until its turn comes: otherwise a group whose jobs come one by
-- one would always be new, and go first. If no job waits at all, all tags are forgotten.
--
-- If several ledgers share the limit, as `lib/share.lua` says, they share that of each group as well.
-- A group begins without a share, and gets one when its jobs wait, from the ledgers that have it, or
-- from nobody. Its units are those of its own rate. Units that were taken away, and are in use, stay
-- the debt of this ledger until another one has them. `since` is when the group got its share or lost
-- it, Unix ms. A share goes some seconds after the last start, when none of its units is in use: it
-- belongs to nobody then. Leases count as long as they run, whatever the share is.
--
-- Other scripts know nothing of the entries: they move and remove jobs in `due` alone. So an entry
-- is checked when its turn comes: it is valid if its job is aside with the due time of the entry. A
-- call that changes the headers of a job stores its due time anew, and so the job is not aside.
--
-- The keys are named by the script and not by its caller: only a kind that has groups may touch
-- them.
--
-- In each call of a script Redis makes its functions anew, and one that refers to others is dear.
-- So claim and settlement open this part only for a kind with a limit. Other scripts have it always:
-- what they use of it is in few functions, most of it within `open_entries` and `open_news`.

-- The groups of a ledger: their terms and keys, and functions for those who get these; nil if its
-- limit has none.
local function open_groups(limit, due_key, now, int, starts_left)
  local by, gap, burst, most, back, census, tag, till, waits, weights =
    string.match(limit.groups, '^(%S+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%d+) ([01])(.*)$')
  if not by then
    return nil
  end
  local start = string.sub(due_key, 1, -4)
  -- Fails before anything is written: if a key of another type has one of these names; and while a
  -- cluster moves the slot of the ledger, because one of the keys may be on the other node.
  redis.call('ZCARD', start .. 'groups')
  redis.call('ZCARD', start .. 'turns')
  local has_rates = redis.call('ZCARD', start .. 'rates') > 0
  local shares_key = limit.share and start .. 'shares' or nil
  if shares_key then
    redis.call('HLEN', shares_key)
  end
  local it = {
    by = by ~= '-' and by or nil,
    gap = tonumber(gap),
    burst = tonumber(burst),
    most = tonumber(most),
    back = back,
    census = census,
    tag = tonumber(tag) or 0,
    -- Rates that were removed with their kind took their expiry along.
    till = has_rates and tonumber(till) or 0,
    waits = waits == '1',
    weights = weights,
    entries_key = start .. 'groups',
    turns_key = start .. 'turns',
    rates_key = start .. 'rates',
    shares_key = shares_key,
    due_key = due_key,
    limit = limit,
    now = now,
    int = int,
    starts_left = starts_left,
    -- As in `lib/waiting.lua`.
    ASIDE = 4000000000000000,
    -- No tag comes near `PARKED`, no time in µs is below it or comes near `ALARM`; with `ALARM` it is
    -- below `WANTS`.
    PARKED = 100000000000000,
    ALARM = 4000000000000000,
    WANTS = 8000000000000000,
    -- How long a group keeps a share that it does not use, µs.
    IDLE = 10000000,
    needs_records = string.byte(by) == 104,
  }

  -- The group in the token of a lease; nil if another version gave it out. A pattern would take
  -- several times as long.
  function it.group_in(lease)
    local blank, mark = string.find(lease, ' ', 1, true), string.find(lease, '@', 1, true)
    return mark and blank and mark + 1 < blank and string.sub(lease, mark + 1, blank - 1) or nil
  end

  -- The rate of a group as that of a kind, and `most`, its leases; of what this ledger has of them.
  -- `full` is its score in `rates`, `share` its field in `shares`. Without the field the rate is that
  -- of the whole: as it was before ledgers shared it.
  function it.rate_of(full, share)
    local rate = {full = tonumber(full or nil) or 0, gap = it.gap, burst = it.burst, most = it.most,
      hold = 0}
    if shares_key then
      local units, leases = string.match(share or '', '^(%d+) (%d+) ')
      rate.burst, rate.most = tonumber(units) or 0, tonumber(leases) or 0
      rate.gap = units and math.ceil(it.gap * it.burst / math.max(1, rate.burst)) or it.gap
    end
    -- If the clock was set back, or the limit had longer gaps, all units are in use, and no more.
    if rate.full > now + rate.gap * it.burst then
      rate.full, rate.is_cut = now + rate.gap * it.burst, true
    end
    return rate
  end

  -- Keeps the rates until this time, µs, and a second; and shares for as long as they last unused.
  function it.keep_till(latest, is_anew)
    local wanted = math.ceil((shares_key and latest + it.IDLE or latest) / 1000)
    if is_anew or latest / 1000 >= it.till or now / 1000 >= it.till
      or shares_key and wanted > it.till then
      it.till = math.max(it.till, wanted + 1000)
      redis.call('PEXPIREAT', it.rates_key, int(it.till))
      if shares_key then
        redis.call('PEXPIREAT', shares_key, int(it.till))
      end
    end
  end

  -- The text of the field.
  function it.text()
    return table.concat({by, gap, burst, most, it.back, it.census, string.format('%.17g', it.tag),
      int(it.till), it.waits and '1' or '0'}, ' ') .. weights
  end

  return it
end

-- The groups of jobs: of their ids, or of their records, which are not read for ids. The name of a
-- group in keys, tokens and rules has other characters than letters, digits and `_.~-` as `%` and
-- two hexadecimal digits; if it is longer than 64 bytes, it is cut, and gets a digest. A job
-- without a group is in the group `%`: no name is written like this.
local function groups_of(groups, ids, records)
  local names, asked, its_name = {}, nil, nil
  local mark, nth = string.match(groups.by, '^id(.)(%d+)$')
  local header = not mark and string.gsub(string.sub(groups.by, 8), '%%(%x%x)', function(code)
    return string.char(tonumber(code, 16))
  end)
  nth = tonumber(nth)
  for i = 1, #ids do
    local id, text = ids[i], ''
    if mark then
      local from, till = 1, nil
      for _ = 2, nth do
        from = from and string.find(id, mark, from, true)
        from = from and from + 1
      end
      till = from and string.find(id, mark, from, true) or 0
      text = from and string.sub(id, from, till - 1) or ''
    else
      local line = string.match(records[i] or '', '^[^\n]*')
      if string.find(line, '"headers":', 1, true) then
        local is_read, found = pcall(cjson.decode, line)
        local headers = is_read and type(found) == 'table' and found.headers
        local value = type(headers) == 'table' and headers[header]
        text = type(value) == 'string' and value or ''
      end
    end
    if text ~= asked then
      asked, its_name = text, text
      -- Most names have letters and digits only, and this pattern is the fastest.
      if not string.find(text, '^%w*$') and string.find(text, '[^A-Za-z0-9_.~-]') then
        its_name = string.gsub(text, '[^A-Za-z0-9_.~-]', function(odd)
          return string.format('%%%02X', string.byte(odd))
        end)
      end
      if #its_name > 64 then
        its_name = string.sub(its_name, 1, 24) .. '~' .. redis.sha1hex(text)
      elseif text == '' then
        its_name = '%'
      end
    end
    names[i] = its_name
  end
  return names
end
