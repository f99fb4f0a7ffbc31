-- The history of a ledger: a capped stream that tells people what was done with its jobs. It is a
-- hint: a script writes it last, through `pcall`, and it never fails the call. One entry has all
-- jobs of a call with the same transition and note. Its fields are always `what`, `by`, `jobs`,
-- `note`, in this order, so that Redis stores their names once. `jobs` is `number more id id …`;
-- jobs with other words follow behind a colon, which no id is. The words `number` and `more` mean,
-- by `what`:
--
--   scheduled replaced succeeds follows    due -        pending; for `succeeds`, once the run ends
--   recurs                                 due -        the next occurrence of a recurring job
--   postponed fired requeued restored      due -
--   moved                                  due -        here from another ledger of the kind
--   updated cancelled stopping superseded  -   -        stopping: cancelled while it runs
--   claimed                                due source   e event, p pacer, r reconciler, b backlog
--   lapsed                                 due claims   taken over: the number of attempts since it
--                                                       was last settled
--   done                                   -   ran      ms since it was claimed
--   skipped                                -   -        note: how late it was
--   failed again snoozed returned          due ran      note: `attempts error` of `failed`, the
--                                                       reason of `snoozed`; due is - if its
--                                                       successor takes its place
--   buried                                 letter ran   note: the same; ran is - without a run
--   deleted                                letter -
--   repaired                               -   -        note: what an audit found
--
-- The note of a transition that a plain key caused: `key set`, `key time` (another expiry),
-- `key expired` (sooner than was known), `key gone` (deleted), `key lasting` (it does not expire
-- any more), `key lost` (missing, and no event said why).
--
--   paused resumed limited unlimited                    no job: the kind

-- The default number of entries of a ledger.
local KEPT = 5000

-- The approximate limit of the jobs in an entry, in bytes: it bounds the stream in bytes.
local JOBS_BYTES = 1024

-- The entries of this call, to be written at its end. They also note which jobs the call changes, if
-- there is a copy of them; see `lib/changes.lua`. `history` is the field of `calls` that says
-- how many entries the ledger keeps. Returns nil if it keeps none.
local function new_story(history)
  local kept = tonumber(history or nil) or KEPT
  return kept > 0 and {kept = kept} or nil
end

local function new_entry(story, what, note)
  -- The `nil`s make room for the words of most entries: a list that grows is copied.
  local jobs = {nil, nil, nil, nil}
  local entry = {what = what, note = note, jobs = jobs, bytes = 0, number = '', more = ''}
  story[what .. ' ' .. note] = entry
  story[#story + 1] = entry
  return entry
end

-- Adds an event of the kind; `tell` adds an event of a job.
local function tell_of_kind(story, what)
  if story then
    new_entry(story, what, '')
  end
end

-- Adds ids[first] to ids[last] to an entry.
local function add_ids(entry, ids, first, last, number, more)
  local jobs = entry.jobs
  local count = #jobs
  if number ~= entry.number or more ~= entry.more then
    if count > 0 then
      count = count + 1
      jobs[count] = ':'
    end
    jobs[count + 1], jobs[count + 2] = number, more
    count = count + 2
    entry.number, entry.more = number, more
    entry.bytes = entry.bytes + #number + #more + 4
  end
  jobs[count + 1] = first == last and ids[first] or table.concat(ids, ' ', first, last)
end

-- Adds an event of the jobs ids[first] to ids[last]. The jobs of a large batch mostly differ only
-- in their ids: they are told together, and the last entry is tried first.
local function tell_all(story, what, note, ids, first, last, number, more)
  if not story or last < first then
    return
  end
  local changed = story.changed
  for i = changed and first or 1, changed and last or 0 do
    changed[#changed + 1] = ids[i]
  end
  if story.kept == 0 then
    return
  end
  local entry = story.last
  if not entry or entry.what ~= what or entry.note ~= note then
    entry = story[what .. ' ' .. note] or new_entry(story, what, note)
  end
  local bytes = entry.bytes
  for i = first, last do
    bytes = bytes + #ids[i] + 1
    if bytes > JOBS_BYTES then
      if i > first then
        add_ids(entry, ids, first, i - 1, number, more)
      end
      entry, first, bytes = new_entry(story, what, note), i, #ids[i] + 1
    end
  end
  entry.bytes = bytes
  add_ids(entry, ids, first, last, number, more)
  story.last = entry
end

local function tell(story, what, note, id, number, more)
  tell_all(story, what, note, {id}, 1, 1, number, more)
end

local function write_story(story, history_key, who)
  for _, entry in ipairs(story or {}) do
    redis.pcall('XADD', history_key, 'MAXLEN', '~', story.kept, '*', 'what', entry.what, 'by', who,
      'jobs', table.concat(entry.jobs, ' '), 'note', entry.note)
  end
end
