-- A record has three parts: `header JSON \n accepted-ms step@ms step@ms … \n payload`. Scripts pass
-- the header on, or replace it by one that a caller composed. They add only `us` to it, and read
-- only `adopted`, `order` in `lib/overtaken.lua`, and whether there is a `recur`, in
-- `lib/lease.lua`.

-- The number of steps that a record keeps, the last ones.
local STEPS = 8

-- The header of a job that is accepted now. It gets the field `us`, the microseconds of the time of
-- acceptance after its millisecond: no two jobs of a name share that time.
local function begun(header, now)
  return string.sub(header, 1, -2) .. ',"us":' .. int(now % 1000) .. '}'
end

-- The opening of a new record, the part before the payload.
local function record_opening(header, steps)
  return header .. '\n' .. steps .. '\n'
end

-- Returns header, steps, payload. A text that is no record is returned whole, as the payload.
local function split_record(record)
  local first = string.find(record, '\n', 1, true)
  local second = first and string.find(record, '\n', first + 1, true)
  if not second then
    return '', '', record
  end
  return string.sub(record, 1, first - 1), string.sub(record, first + 1, second - 1),
    string.sub(record, second + 1)
end

-- The digest of the key's value that the record was made from; nil or false if the job was not
-- adopted.
local function adopted_from(record)
  local header = string.match(record, '^[^\n]*')
  if string.find(header, '"adopted":"', 1, true) then
    -- The text may also be the name of a header that a client gave the job.
    local is_read, it = pcall(cjson.decode, header)
    return is_read and it.adopted
  end
end

-- The record with one more step, and with another header or payload if one is given.
local function with_step(record, step, now, header, payload)
  local old_header, steps, old_payload = split_record(record)
  if steps == '' then
    -- The record is damaged or missing, and about to be buried. The time of acceptance is lost, so
    -- now takes its place.
    steps = int(math.floor(now / 1000))
  end
  steps = steps .. ' ' .. step .. '@' .. int(math.floor(now / 1000))
  local _, count = string.gsub(steps, '@', '@')
  if count > STEPS then
    steps = string.gsub(steps, '^(%S*) %S+', '%1', 1)
  end
  return (header or old_header) .. '\n' .. steps .. '\n' .. (payload or old_payload)
end
