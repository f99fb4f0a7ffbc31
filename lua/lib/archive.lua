-- The records of ended jobs, for an archive. A kind that asks for them has the field `archive` of
-- `calls`, `payload most keep keep-dead set who`, or `off set` if it asks no more:
--
--   payload    the longest payload that a record carries, in bytes; a longer one is left out
--   most       how many bytes of records may wait, without those of dead letters
--   keep       for how many months the archive keeps a record, 0 for ever; keep-dead the same for
--              a dead letter. Both are handed on with the record
--
-- Two lists beside the ledger exist only while records wait: `ended`, and `died` for jobs that
-- became dead letters. An archiver copies the oldest records, and then removes them. The field
-- `waiting` of `calls` has `ended bytes died bytes dropped`: the number of the first record of each
-- list, its bytes, and how many records of `ended` were dropped because they were too many. So an
-- archiver that is late removes nothing that it has not copied. Numbers begin with the time, so that
-- those of a ledger that begins anew are higher.
--
-- A record is `what at keep fence claims due letter cut id by`, then the three parts of the
-- record of the job, see `lib/record.lua`: `what` is done, skipped, cancelled, replaced or buried;
-- `at` the time, µs; `fence` and `claims` are of the lease, 0 without one; `cut` is the length of a
-- payload that was too long, and left out; 0 if the payload follows.
--
-- The script names the lists itself, as in `lib/groups.lua`, and reads them before it writes: that
-- fails if they have another type, or while a cluster moves the slot of the ledger.

-- How many records are pushed with one command.
local PUSHED = 1000

-- The archive of a ledger; nil if it has none.
local function open_archive(archive, calls_key, stamp, by)
  local payload, most, keep, keep_dead = string.match(archive or '', '^(%d+) (%d+) (%d+) (%d+)')
  if not payload then
    return nil
  end
  local start = string.sub(calls_key, 1, -6)
  local it = {payload = tonumber(payload), most = tonumber(most), keep = keep,
    keep_dead = keep_dead, stamp = stamp, by = by, ended = {}, died = {}, count = {},
    ended_key = start .. 'ended', died_key = start .. 'died'}
  it.there = {redis.call('LLEN', it.ended_key), redis.call('LLEN', it.died_key)}
  -- What is written behind the records must not fail.
  redis.call('HLEN', start .. 'shadow')
  redis.call('ZCARD', start .. 'leased')
  it.waiting = redis.call('HGET', calls_key, 'waiting')
  return it
end

-- The words of a record before the id. A header of the caller counts the attempts of the lease, and
-- so the lease adds none.
local function head_of(it, what, at, lease, due, header, letter, cut)
  local fence, claims = 0, 0
  if lease then
    local _, attempts, its_fence, its_due = split_lease(lease)
    fence, claims, due = its_fence, header and 0 or attempts, int(its_due)
  end
  return table.concat({what, at, letter and it.keep_dead or it.keep, int(fence), int(claims), due,
    letter or '0', cut, ''}, ' ')
end

-- Adds the end of a job. `lease` is nil for one without a run, `due` is text, and `letter` the
-- number of its dead letter or nil.
local function archive_end(it, what, id, record, lease, due, header, letter)
  record = record or ''
  local cut = '0'
  if header or #record > it.payload then
    local first = string.find(record, '\n', 1, true)
    local second = first and string.find(record, '\n', first + 1, true)
    if not second then
      record, first, second = '\n\n' .. record, 1, 2
    end
    if #record - second > it.payload then
      cut, record = int(#record - second), string.sub(record, 1, second)
    end
    record = header and header .. string.sub(record, first) or record
  end
  -- Two jobs of a name that end in one call do so a microsecond apart: the time tells them apart.
  local before = it.count[id]
  it.count[id] = (before or 0) + 1
  local at = before and int(tonumber(it.stamp) + before) or it.stamp
  local list = letter and it.died or it.ended
  list[#list + 1] = head_of(it, what, at, lease, due, header, letter, cut) .. id .. ' ' .. it.by
    .. '\n' .. record
end

-- Adds the ends of the jobs from one place in `ids` to another: each is done, and has not ended
-- before in this call. A record that is not in `records` is read. Jobs of one claim share the words
-- of their lease.
local function archive_done(it, ids, from, to, records, shadow_key, leases)
  local list, payload, by = it.ended, it.payload, ' ' .. it.by .. '\n'
  local size, lease, head = #list, nil, nil
  for i = from, to do
    local id = ids[i]
    local record = records[id] or redis.call('HGET', shadow_key, id) or ''
    size = size + 1
    if #record > payload then
      archive_end(it, 'done', id, record, leases[i])
    else
      if leases[i] ~= lease then
        lease = leases[i]
        head = head_of(it, 'done', it.stamp, lease, nil, nil, nil, '0')
      end
      list[size] = head .. id .. by .. record
    end
  end
end

-- Writes the ends of this call: the first write of the ledger, so that a user who may not write
-- them ends no job. Returns the error. The oldest records go if too many wait.
local function write_archive(it, calls_key)
  if not it or #it.ended + #it.died == 0 then
    return nil
  end
  local first, bytes, first_died, bytes_died, dropped =
    string.match(it.waiting or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  first, first_died = first or it.stamp, first_died or it.stamp
  -- Also if another program has taken records away.
  bytes = it.there[1] > 0 and tonumber(bytes) or 0
  bytes_died = it.there[2] > 0 and tonumber(bytes_died) or 0
  dropped = tonumber(dropped or 0)
  for _, record in ipairs(it.ended) do
    bytes = bytes + #record
  end
  for _, record in ipairs(it.died) do
    bytes_died = bytes_died + #record
  end
  for key, list in pairs({[it.ended_key] = it.ended, [it.died_key] = it.died}) do
    for at = 1, #list, PUSHED do
      local fault =
        error_in(redis.pcall('RPUSH', key, unpack(list, at, math.min(at + PUSHED - 1, #list))))
      if fault then
        return fault
      end
    end
  end
  -- More than have come, so that an excess shrinks.
  for _ = 1, bytes > it.most and #it.ended + 16 or 0 do
    local oldest = bytes > it.most and redis.pcall('LPOP', it.ended_key)
    if type(oldest) ~= 'string' then
      break
    end
    first, bytes = int(tonumber(first) + 1), math.max(0, bytes - #oldest)
    dropped = dropped + 1
  end
  redis.call('HSET', calls_key, 'waiting', table.concat(
    {first, int(bytes), first_died, int(bytes_died), int(dropped)}, ' '))
end
