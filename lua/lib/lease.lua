-- A lease is `token claims fence due flag`: `claims` counts the attempts begun since the record was
-- last written; `fence` and `due` are given as text; `flag` is `-`, `recurs` for an occurrence of a
-- recurring job, or `cancelled` for a run that must not be retried. If the kind has groups, the
-- token is `lane-number@group`: so the end of the lease knows the group without the record, and
-- whoever takes a lease apart at its blanks need not know of groups. The holder may prove its lease
-- by the part before the `@` alone, which all jobs of its claim share.
local function new_lease(token, claims, fence, due, flag)
  return token .. ' ' .. claims .. ' ' .. fence .. ' ' .. due .. ' ' .. flag
end

local function split_lease(lease)
  local token, claims, fence, due, flag =
    string.match(lease, '^(%S+) (%d+) (%d+) (%d+) (%S+)$')
  return token or '', tonumber(claims) or 1, tonumber(fence) or 0, tonumber(due) or 0, flag or '-'
end

-- The fencing value of a lease; 0 if it is damaged. Like `holds` and `is_cancelled`, it does not
-- take the lease apart.
local function fence_of(lease)
  local before = string.find(lease, ' ', 1, true)
  before = before and string.find(lease, ' ', before + 1, true)
  local behind = before and string.find(lease, ' ', before + 1, true)
  return behind and tonumber(string.sub(lease, before + 1, behind - 1)) or 0
end

-- Whether a lease has this token, and behind it a blank, 32, or an `@`, 64. It makes no text of the
-- two.
local function holds(lease, token)
  local behind = string.byte(lease, #token + 1)
  return (behind == 32 or behind == 64) and string.find(lease, token, 1, true) == 1
end

local function is_cancelled(lease)
  return string.sub(lease, -10) == ' cancelled'
end

-- Whether a job recurs. The field of its rule comes first in the header, so that this costs little.
local function recurs(record)
  return string.byte(record, 3) == 114 and string.sub(record, 1, 9) == '{"recur":'
end

-- Whether the end of this lease is to be followed by another occurrence.
local function is_recurring(lease)
  return string.byte(lease, -1) == 115 and string.sub(lease, -7) == ' recurs'
end

-- The approximate limit of the records in the reply of a claim: about as much as a connection
-- carries in a moment.
local REPLY_BYTES = 4 * 1024 * 1024

-- How many records are read at once, and so how far the limit can be exceeded.
local RECORDS = 16

-- The records of these ids, '' for a missing one; only of the first ids if all would exceed `most`
-- bytes.
local function read_records(shadow_key, ids, most)
  local records, bytes = {nil, nil, nil, nil}, 0
  for first = 1, #ids, RECORDS do
    if bytes > most then
      break
    end
    local last = math.min(first + RECORDS - 1, #ids)
    local read = redis.call('HMGET', shadow_key, unpack(ids, first, last))
    for i = 1, last - first + 1 do
      local record = read[i] or ''
      records[first + i - 1] = record
      bytes = bytes + #record
    end
  end
  return records
end

-- The reply of a claim: the leases, one line for each job, and each job as id and record. The line
-- `=` repeats the lease before it: the client reads a text more cheaply than the items of an array.
local function hand_out(stamp, misses, ids, leases, records)
  local reply, lines = {'ok', stamp, misses}, {}
  for i = 1, #ids do
    lines[i] = leases[i] == leases[i - 1] and '=' or leases[i]
    reply[2 * i + 3], reply[2 * i + 4] = ids[i], records[i]
  end
  reply[4] = table.concat(lines, '\n')
  return reply
end

-- The reply of a repeated claim: its jobs as far as the token still holds them; their leases count
-- from now.
local function hand_out_again(shadow_key, leased_key, lease_key, stamp, token, remembered, deadline)
  local ids, leases, deadlines = {}, {}, {}
  for id in string.gmatch(remembered, '%S+') do
    local lease = redis.call('HGET', lease_key, id)
    if lease and holds(lease, token) then
      ids[#ids + 1] = id
      leases[#leases + 1] = lease
      deadlines[#deadlines + 1] = deadline
      deadlines[#deadlines + 1] = id
    end
  end
  local reply = hand_out(stamp, '', ids, leases, read_records(shadow_key, ids, math.huge))
  redis.call('ZREM', leased_key, '')
  if #deadlines > 0 then
    redis.call('ZADD', leased_key, unpack(deadlines))
  end
  return reply
end
