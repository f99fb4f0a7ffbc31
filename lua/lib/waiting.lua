-- A due job that waits for the turn of its group stays in `due`, so that every script finds it, but
-- with a score that is higher by `ASIDE`: no range of due jobs meets it, however many wait. A due
-- time is below `ASIDE`, and the sum is still a whole number that a score can hold.

local ASIDE = 4000000000000000

-- The due time of a score.
local function due_of(score)
  local due = tonumber(score)
  return due >= ASIDE and due < math.huge and due - ASIDE or due
end

-- The same as text. A plain score is passed on as it is.
local function due_text(score)
  local due = due_of(score)
  return due == tonumber(score) and score or int(due)
end

-- How many jobs wait for the turn of their group.
local function aside_count(due_key)
  return redis.call('ZCOUNT', due_key, int(ASIDE), '(inf')
end
