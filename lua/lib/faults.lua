-- What can be wrong with a name, given the keys of its ledger in the order due, shadow, leased,
-- lease, next, dead, grave. A word for the first fault found, or 'sound'.

-- An id: the job of this name, and where it leads to dead letters.
local function fault_of_job(keys, id, now_ms)
  local due = redis.call('ZSCORE', keys[1], id)
  local record = redis.call('HSTRLEN', keys[2], id) > 0
  local deadline = redis.call('ZSCORE', keys[3], id)
  local lease = redis.call('HEXISTS', keys[4], id) == 1
  local successor = redis.call('HEXISTS', keys[5], id) == 1
  if due and not record then
    return 'bare'
  elseif due and (deadline or lease) then
    return 'twice'
  elseif record and not (due or deadline or lease) then
    return 'stray'
  elseif deadline and not lease then
    return 'tokenless'
  elseif lease and not deadline then
    return 'timeless'
  elseif lease and not record then
    return tonumber(deadline) <= now_ms and 'blank' or 'blind'
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

-- A name `id:number`, which is that of a dead letter.
local function fault_of_letter(keys, name)
  local died = redis.call('ZSCORE', keys[6], name)
  local record = redis.call('HSTRLEN', keys[7], name) > 0
  if died and not record then
    return 'wordless'
  elseif record and not died then
    return 'undead'
  end
  return 'sound'
end

local function fault_of(keys, name, now_ms)
  if string.find(name, ':', 1, true) then
    return fault_of_letter(keys, name)
  end
  return fault_of_job(keys, name, now_ms)
end
