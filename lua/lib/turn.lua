-- On several servers pauses and resumes are numbered. A ledger remembers the largest number that it
-- was told, in the field `turn` of its hash `calls`: a server that was away may be told late.

local function is_past_turn(calls, turn)
  local taken = tonumber(redis.call('HGET', calls, 'turn') or nil) or 0
  return tonumber(turn) > 0 and tonumber(turn) < taken
end

local function take_turn(calls, turn)
  if tonumber(turn) > 0 then
    redis.call('HSET', calls, 'turn', turn)
  end
end
