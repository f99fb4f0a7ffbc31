-- On several servers pauses and resumes are numbered. The field `turn` of `calls` is the largest
-- number that the ledger was told: a server that was away may be told late.

local function is_past_turn(calls, turn)
  local taken = tonumber(redis.call('HGET', calls, 'turn') or nil) or 0
  return tonumber(turn) > 0 and tonumber(turn) < taken
end

local function take_turn(calls, turn)
  if tonumber(turn) > 0 then
    redis.call('HSET', calls, 'turn', turn)
  end
end
