-- Spaced schedules of one name, of which the last payload wins:
--
--   debounce:ms  the job is due when the calls have been silent for the delay of the last one, but no
--                later than so many ms after the first one. The record keeps the time of acceptance
--                of the first.
--   throttle:ms  the due times of two such jobs are so many ms apart, and the first is due at once.
--                A string beside the ledger has the last due time; it expires.

-- Returns the sort and its ms, as text; nothing for other modes.
local function spacing_of(mode)
  if string.byte(mode, -1) <= 57 then
    return string.match(mode, '^(%a+):(%d+)$')
  end
end

-- Whether an attempt of a job has ended, by the second line of its record.
local function was_tried(steps)
  return string.find(steps, 'failed@', 1, true) or string.find(steps, 'again@', 1, true)
    or string.find(steps, 'snoozed@', 1, true)
end

-- The due time of a spaced schedule, and the time of acceptance that its record gets, as text; nil
-- for now. `asked` is the due time without the spacing. `there` has due time and record of the job
-- that it replaces, or is a successor as it is stored. The last due time of a throttled name is
-- added to `notes`.
local function spaced_due(spacing, span, name, asked, now, there, notes)
  local now_ms, due, record = math.floor(now / 1000), nil, nil
  span = tonumber(span)
  if type(there) == 'table' then
    due, record = due_of(there[1]), there[2]
  elseif type(there) == 'string' then
    due, record = split_successor(there)
  end
  local since, steps = string.match(record or '', '^[^\n]*\n(%d+)([^\n]*)')
  if since and was_tried(steps) then
    since = nil
  end
  if spacing == 'debounce' then
    local latest = (tonumber(since) or now_ms) + span
    return math.max(now_ms, math.min(asked, latest)), since
  end
  local last = redis.pcall('GET', name)
  last = type(last) == 'string' and tonumber(last) or -math.huge
  local next_one = math.max(asked, last + span)
  due = due and math.min(due, next_one) or next_one
  notes[#notes + 1] = {name, due, math.max(1, due - now_ms) + span}
  return due, since
end

local function write_spacing(notes)
  for _, noted in ipairs(notes) do
    redis.pcall('SET', noted[1], int(noted[2]), 'PX', int(noted[3]))
  end
end
