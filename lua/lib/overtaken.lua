-- Jobs of several ledgers can mean the same, of which the latest is to stay. An order number says
-- which that is: it is a field of their header, and nothing else tells it.

-- The order number that a record says; 0 if none.
local function order_of(record)
  local header = string.match(record, '^[^\n]*')
  if string.find(header, '"order":', 1, true) then
    -- It may also be the name of a header that somebody gave the job.
    local is_read, it = pcall(cjson.decode, header)
    return is_read and type(it.order) == 'number' and it.order or 0
  end
  return 0
end

-- That of the job that is there: of what is to follow its run, if something is.
local function order_there(shadow_key, id, successor)
  local record = successor and select(2, split_successor(successor))
    or redis.call('HGET', shadow_key, id)
  return record and order_of(record) or 0
end
