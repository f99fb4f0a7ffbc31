-- Order numbers. Jobs in several ledgers can stand for the same thing, and only the latest must
-- stay. The order number in the header of each tells which one that is.

-- The order number in a record; 0 if it has none.
local function order_of(record)
  local header = string.match(record, '^[^\n]*')
  if string.find(header, '"order":', 1, true) then
    -- The text may also be the name of a header that a client gave the job.
    local is_read, it = pcall(cjson.decode, header)
    return is_read and type(it.order) == 'number' and it.order or 0
  end
  return 0
end

-- The record of the present job: of the successor of its run, if there is one.
local function record_there(shadow_key, id, successor)
  return successor and select(2, split_successor(successor)) or redis.call('HGET', shadow_key, id)
end

-- The order number of the present job.
local function order_there(shadow_key, id, successor)
  local record = record_there(shadow_key, id, successor)
  return record and order_of(record) or 0
end
