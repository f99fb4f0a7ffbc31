-- The changes of jobs, for a copy in a database. They are noted while the ledger has the field
-- `changes` of `calls`, `most version number`; a copier sets it when it begins to copy the ledger:
--
--   most     how many changed jobs may wait. If there are more, or the kind is copied no more, none
--            are noted, the field is `over version number`, and a copier begins anew
--   version  of the last change: the time in µs, or one more than the last version
--   number   of the batches that were copied and acknowledged
--
-- The sorted set `changes` beside the ledger has the ids of the changed jobs and the version of
-- their last change, until the copy has it. What became of a job is read with its id.
--
-- The script names the set itself, as in `lib/groups.lua`, and reads it before it writes: that
-- fails if it has another type, or while a cluster moves the slot of the ledger.

-- The events of a call, which also note what it changes. `changes` is the field of `calls`.
local function noting(story, changes, calls_key)
  local most, version, number
  if changes then
    most, version, number = string.match(changes, '^(%d+) (%d+) (%d+)$')
  end
  if not most then
    return story
  end
  story = story or {kept = 0}
  local key = string.sub(calls_key, 1, -6) .. 'changes'
  redis.call('ZSCORE', key, '')
  story.changed =
    {key = key, most = tonumber(most), version = tonumber(version), number = number}
  return story
end

-- How many ids are noted with one command.
local NOTED = 500

-- Notes the jobs that this call tells of. A change that cannot be noted ends the noting, as too
-- many changes do: a copier finds that out, and copies all jobs again.
local function write_changes(story, calls_key, now)
  local it = story and story.changed
  if not it or #it == 0 then
    return
  end
  local version = int(math.max(now, it.version + 1))
  local is_noted = true
  for first = 1, #it, NOTED do
    local scores = {}
    for i = first, math.min(first + NOTED - 1, #it) do
      scores[#scores + 1], scores[#scores + 2] = version, it[i]
    end
    is_noted = is_noted and not error_in(redis.pcall('ZADD', it.key, unpack(scores)))
  end
  -- A user without the right to count leaves that to others.
  local waiting = redis.pcall('ZCARD', it.key)
  if is_noted and (type(waiting) ~= 'number' or waiting <= it.most) then
    redis.call('HSET', calls_key, 'changes', int(it.most) .. ' ' .. version .. ' ' .. it.number)
  else
    redis.pcall('UNLINK', it.key)
    redis.call('HSET', calls_key, 'changes', 'over ' .. version .. ' ' .. it.number)
  end
end
