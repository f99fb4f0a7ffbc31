-- A lease is `token claims fence due flag`: claims counts the attempts begun since the
-- record was last written; flag is `-`, or `cancelled` for a run that must not be retried.
local function new_lease(token, claims, fence, due, flag)
  return token .. ' ' .. int(claims) .. ' ' .. int(fence) .. ' ' .. int(due) .. ' ' .. flag
end

local function split_lease(lease)
  local token, claims, fence, due, flag =
    string.match(lease, '^(%S+) (%d+) (%d+) (%d+) (%S+)$')
  return token or '', tonumber(claims) or 1, tonumber(fence) or 0, tonumber(due) or 0, flag or '-'
end

-- The reply of a claim: the jobs, each as id, lease, record.
local function hand_out(shadow_key, now, misses, ids, leases)
  local reply = {'ok', int(now), misses}
  local records = #ids > 0 and redis.call('HMGET', shadow_key, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    reply[#reply + 1] = id
    reply[#reply + 1] = leases[i]
    reply[#reply + 1] = records[i] or ''
  end
  return reply
end

-- The reply of a claim that is repeated: the same jobs, as far as the token still holds
-- them, their leases counted from now.
local function hand_out_again(shadow_key, leased_key, lease_key, now, token, remembered, deadline)
  local ids, leases, deadlines = {}, {}, {}
  for id in string.gmatch(remembered, '%S+') do
    local lease = redis.call('HGET', lease_key, id)
    if lease and split_lease(lease) == token then
      ids[#ids + 1] = id
      leases[#leases + 1] = lease
      deadlines[#deadlines + 1] = deadline
      deadlines[#deadlines + 1] = id
    end
  end
  local reply = hand_out(shadow_key, now, '', ids, leases)
  redis.call('ZREM', leased_key, '')
  if #deadlines > 0 then
    redis.call('ZADD', leased_key, unpack(deadlines))
  end
  return reply
end
