-- A record is three parts: `header JSON \n accepted-ms step@ms step@ms … \n payload`. Scripts
-- hand the header on, or replace it by one that a caller composed; all they put in is when a job was
-- accepted, and all they read is that, and whether it was adopted.

-- The number of last steps that a record keeps.
local STEPS = 8

-- The header of a job that is accepted now: with the microseconds of its time, so that no two of a
-- name begin at one.
local function begun(header, now)
  return string.sub(header, 1, -2) .. ',"us":' .. int(now % 1000) .. '}'
end

-- The part before the payload in a new record.
local function record_opening(header, steps)
  return header .. '\n' .. steps .. '\n'
end

-- Returns header, steps, payload; a record that is no record comes back whole, as payload.
local function split_record(record)
  local first = string.find(record, '\n', 1, true)
  local second = first and string.find(record, '\n', first + 1, true)
  if not second then
    return '', '', record
  end
  return string.sub(record, 1, first - 1), string.sub(record, first + 1, second - 1),
    string.sub(record, second + 1)
end

-- The digest of the value of a key that a record was made from, if it was adopted.
local function adopted_from(record)
  local header = string.match(record, '^[^\n]*')
  if string.find(header, '"adopted":"', 1, true) then
    -- The word may also be the name of a header that a client gave the job.
    local is_read, it = pcall(cjson.decode, header)
    return is_read and it.adopted
  end
end

-- The record with one more step, and with another header or payload if one is given.
local function with_step(record, step, now, header, payload)
  local old_header, steps, old_payload = split_record(record)
  if steps == '' then
    -- A record that is damaged or missing, about to be buried: it began now, for all we know.
    steps = int(math.floor(now / 1000))
  end
  steps = steps .. ' ' .. step .. '@' .. int(math.floor(now / 1000))
  local _, count = string.gsub(steps, '@', '@')
  if count > STEPS then
    steps = string.gsub(steps, '^(%S*) %S+', '%1', 1)
  end
  return (header or old_header) .. '\n' .. steps .. '\n' .. (payload or old_payload)
end
