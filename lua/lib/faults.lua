-- The flaws of a name. `keys` are the keys of its ledger in the order due, shadow, leased, lease,
-- next, dead, grave. Returns the word for the first flaw found, or 'sound'.
--
-- `judged` is the judgement of the caller, for questions that Lua cannot answer: empty; `J` for a
-- name that no job can have, `L` for a name that no letter can have; or `R` and the beginning of
-- an unreadable record.

local IS_SET = {true, false, true, false, false, true, false}

-- Whether the score can be a due time, a deadline or a time of death. No clock reaches infinity,
-- and beyond 2^53 some whole numbers do not exist.
local function is_time(score)
  local ms = tonumber(score)
  return ms >= 0 and ms < 2 ^ 53
end

-- Whether `members` counts a member with this score. It does not count the placeholder.
local function is_counted(score)
  return score and tonumber(score) < math.huge or false
end

local function is_unreadable(value, judged)
  return value and #judged > 1 and string.sub(judged, 1, 1) == 'R'
    and string.sub(value, 1, #judged - 1) == string.sub(judged, 2)
end

-- The record in the value of a successor.
local function record_of_next(next_key, id)
  local successor = redis.call('HGET', next_key, id)
  return successor and select(2, split_successor(successor))
end

-- The faults of an id: of the job of this name, and of its list of dead letters.
local function fault_of_job(keys, id, now_ms, judged)
  local due = redis.call('ZSCORE', keys[1], id)
  local record = redis.call('HSTRLEN', keys[2], id) > 0
  local deadline = redis.call('ZSCORE', keys[3], id)
  local lease = redis.call('HGET', keys[4], id)
  local successor = redis.call('HEXISTS', keys[5], id) == 1
  if due and not record then
    return 'bare'
  elseif due and (deadline or lease) then
    return 'twice'
  elseif record and not (due or deadline or lease) then
    return 'stray'
  elseif due and not is_time(due) then
    return 'untimely'
  elseif deadline and not (lease and string.find(lease, '^%S+ %d+ %d+ %d+ %S+$')) then
    return 'tokenless'
  elseif lease and not (deadline and is_time(deadline)) then
    return 'timeless'
  elseif lease and not record then
    return tonumber(deadline) <= now_ms and 'blank' or 'blind'
  elseif #judged > 1 and (is_unreadable(redis.call('HGET', keys[2], id), judged)
      or is_unreadable(record_of_next(keys[5], id), judged)) then
    return 'garbled'
  elseif successor and not lease then
    return 'headless'
  end
  for number in string.gmatch(redis.call('HGET', keys[7], id) or '', '%S+') do
    if not redis.call('ZSCORE', keys[6], id .. ':' .. number) then
      return 'misfiled'
    end
  end
  return 'sound'
end

-- The faults of a name `id:number`, the name of a dead letter.
local function fault_of_letter(keys, name, judged)
  local died = redis.call('ZSCORE', keys[6], name)
  local record = redis.call('HSTRLEN', keys[7], name) > 0
  local id = string.match(name, '^(.+):%d+$')
  if died and not record then
    return 'wordless'
  elseif record and not is_counted(died) then
    return 'undead'
  elseif #judged > 1 and is_unreadable(redis.call('HGET', keys[7], name), judged) then
    return 'illegible'
  elseif died and id and redis.call('HEXISTS', keys[7], id) == 0 then
    return 'unfiled'
  end
  return 'sound'
end

-- The flaws of an impossible name, in the keys of jobs for `J`, or of letters for `L`. The
-- placeholder is sound there, and in a sorted set only at the score infinity.
local function fault_of_name(keys, name, judged)
  local is_there, is_kept = false, false
  for at = judged == 'J' and 1 or 6, judged == 'J' and 5 or 7 do
    local value = redis.call(IS_SET[at] and 'ZSCORE' or 'HGET', keys[at], name)
    if name == PLACEHOLDER then
      value = IS_SET[at] and is_counted(value)
    end
    is_there = is_there or value
    is_kept = is_kept or (at == 2 or at == 5 or at == 7) and value and #value > 0
  end
  return is_kept and 'alien' or is_there and 'void' or 'sound'
end

local function fault_of(keys, name, now_ms, judged)
  if judged == 'J' or judged == 'L' then
    return fault_of_name(keys, name, judged)
  elseif string.find(name, ':', 1, true) then
    return fault_of_letter(keys, name, judged)
  end
  return fault_of_job(keys, name, now_ms, judged)
end
