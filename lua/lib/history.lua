-- The history of a ledger: a capped stream that tells people what was done. A hint: it is written
-- after everything else, through `pcall`, and never fails the call. One entry tells of all jobs of
-- a call that the same happened to; its fields are always the same, in the same order, so that
-- Redis stores their names once: `what`, `by`, `jobs`, `note`. `jobs` is `number more id id …`, and
-- behind a colon, which no id is, the same of others. What the two words mean goes by `what`:
--
--   scheduled replaced succeeds follows    due -        pending; for `succeeds`, once the run ends
--   postponed fired requeued restored      due -
--   moved                                  due -        here from another ledger of the kind
--   updated cancelled stopping superseded  -   -        stopping: cancelled while it runs
--   claimed                                due source   e event, p pacer, r reconciler, b backlog
--   lapsed                                 due claims   taken over: which attempt since it was
--                                                       last settled
--   done                                   -   ran      ms since it was claimed
--   failed again snoozed returned          due ran      note: `attempts error`, of `failed` only;
--                                                       due is - if its successor takes its place
--   buried                                 letter ran   note: the same; ran is - without a run
--   deleted                                letter -
--   repaired                               -   -        note: what an audit found
--
-- What came through a plain key says how in its note: `key set`, `key time`, `key expired` (sooner
-- than was known), `key gone`, `key lasting` (it has no time any more), `key lost` (it is missing,
-- and nobody heard why).
--
--   paused resumed                                      no job: the kind

-- The default number of entries of a ledger.
local KEPT = 5000

-- The approximate limit of the jobs in an entry, in bytes: it bounds the stream in bytes.
local JOBS_BYTES = 1024

-- The story of this call, given the field `history` of `calls`: the number of entries that are
-- kept. Nothing if there are to be none.
local function new_story(history)
  local kept = tonumber(history or nil) or KEPT
  return kept > 0 and {kept = kept} or nil
end

local function new_entry(story, what, note)
  local entry = {what = what, note = note, jobs = {}, words = 0, bytes = 0}
  story[what .. ' ' .. note] = entry
  story[#story + 1] = entry
  return entry
end

-- Adds an event of a kind; with `tell`, an event of a job. In a large batch, the jobs mostly differ
-- only in their ids.
local function tell_of_kind(story, what)
  if story then
    new_entry(story, what, '')
  end
end

local function tell(story, what, note, id, number, more)
  if not story then
    return
  end
  local entry = story.last
  if not entry or entry.what ~= what or entry.note ~= note then
    entry = story[what .. ' ' .. note] or new_entry(story, what, note)
    story.last = entry
  end
  local bytes = entry.bytes + #id + 1
  if bytes > JOBS_BYTES then
    entry = new_entry(story, what, note)
    story.last, bytes = entry, #id + 1
  end
  local jobs, words = entry.jobs, entry.words
  if number ~= entry.number or more ~= entry.more then
    if words > 0 then
      words = words + 1
      jobs[words] = ':'
    end
    jobs[words + 1], jobs[words + 2] = number, more
    words = words + 2
    entry.number, entry.more = number, more
    bytes = bytes + #number + #more + 4
  end
  jobs[words + 1] = id
  entry.words, entry.bytes = words + 1, bytes
end

local function write_story(story, history_key, who)
  for _, entry in ipairs(story or {}) do
    redis.pcall('XADD', history_key, 'MAXLEN', '~', story.kept, '*', 'what', entry.what, 'by', who,
      'jobs', table.concat(entry.jobs, ' '), 'note', entry.note)
  end
end
