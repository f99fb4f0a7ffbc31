-- A caller that has read a job can say what it has seen: the state (pending | leased | successor),
-- a blank, and the first two lines of the record in that state. Any change of the job changes
-- these.

-- The state of a job; nil or false if there is none.
local function state_of(due, lease, successor)
  return lease and (successor and 'successor' or 'leased') or due and 'pending'
end

-- Whether a job is as it was seen. The record is that of its successor, if there is one.
local function is_as_seen(seen, state, record)
  return string.sub(state .. ' ' .. record, 1, #seen) == seen
end
