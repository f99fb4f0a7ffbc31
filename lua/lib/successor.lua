-- A successor is stored as `due record`, beside the run that it will replace.
local function split_successor(successor)
  local due, record = string.match(successor, '^(%d+) (.*)$')
  return tonumber(due) or 0, record or successor
end

-- The successors of these jobs. Only a leased job can have one, and few have.
local function next_of(next_key, ids, leases)
  for i = 1, #leases do
    if leases[i] then
      return redis.call('HLEN', next_key) > 0 and redis.call('HMGET', next_key, unpack(ids)) or {}
    end
  end
  return {}
end
