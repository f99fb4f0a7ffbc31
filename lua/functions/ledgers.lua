-- The ledgers of a kind: which of them has a job. All ledgers are in this one Redis and nobody comes in
-- between, so what a function has read holds until it returns. A job that a reshard is still to move is
-- refused: it moves in a moment, and to move it here would be a second implementation of that.

-- What calls are told apart by in the history.
local WHO = 'fcall'

local function refused(code, text)
  return redis.error_reply(code .. ' ' .. text)
end

-- What somebody has sent, as an error can show it: one line of ASCII.
local function shown(text)
  local cut = #text > 120
  text = string.gsub(string.sub(text, 1, 120), '[^ -~]', '?')
  return '"' .. text .. '"' .. (cut and '...' or '')
end

-- A key of a ledger, given what stands behind the subject in its name; and a list of them, before the
-- trigger of a job.
local function key_of(subject, part)
  return LEDGER .. subject .. part
end

local function keys_of(subject, parts, trigger)
  local keys = {}
  for i, part in ipairs(parts) do
    keys[i] = LEDGER .. subject .. part
  end
  keys[#keys + 1] = trigger
  return keys
end

-- Where it is written down what holds for the kind as a whole, whatever number of ledgers it has.
local function calls_of(kind)
  return key_of(subject_of(kind, 0), NAMES.calls)
end

-- A layout: how many ledgers a kind has, with which epoch, and, while jobs are moved, from how many.
-- Of a kind, or a ledger, that says nothing it is the first. Nothing if it cannot be read; and why.
local function read_layout(kind, text)
  text = text and text ~= '' and text or '1'
  local shards, epoch, from = string.match(text, '^(%d+) ?(%d*) ?(%d*)$')
  shards, from = tonumber(shards), tonumber(from)
  local ledgers = shards and math.max(shards, from or 1)
  if not shards or shards < 1 or from == 0 or ledgers > MOST_SHARDS then
    return nil, refused('INCOMPATIBLE', kind .. ' has the layout ' .. shown(text) .. ', which this '
      .. 'library, of keyfall ' .. VERSION .. ', does not know: run `keyfall functions install` of the '
      .. 'version that wrote it')
  end
  return {text = text, shards = shards, epoch = tonumber(epoch) or 0, from = from,
    ledgers = ledgers}
end

-- The refusal of a call on a job that a reshard is still to move.
local function not_arrived(kind, layout)
  return refused('RESHARDING', kind .. ' is being resharded, and this job is yet to be moved, or is on '
    .. 'its way: repeat the call in a moment. If that does not help, nobody goes on with it: run '
    .. '`keyfall reshard ' .. kind .. ' --to ' .. layout.shards .. '`')
end

-- The subject of the ledger that a job is in, and by which place it is asked for there; or nothing,
-- and what is said against it: the job is still to be moved, or the ledger that it is to leave, and that
-- others may put it into, was not told of the layout yet. Also the ledger that it left, or letters of it
-- are still to leave, if there is one.
local function place_of(kind, id, layout)
  local shard, before = shard_of(id, layout.shards), layout.from and shard_of(id, layout.from)
  local place = int(layout.epoch)
  if not before or before == shard then
    return subject_of(kind, shard), place
  end
  local old = subject_of(kind, before)
  local stale = misplaced(redis.call('HGET', key_of(old, NAMES.calls), 'layout'), place)
  if stale then
    return nil, stale
  elseif redis.call('HGET', key_of(old, NAMES.lease), id) then
    return old, place .. '-'
  elseif redis.call('ZSCORE', key_of(old, NAMES.due), id)
    or redis.call('HGET', key_of(old, NAMES.leaving), id) then
    return nil, not_arrived(kind, layout)
  end
  return subject_of(kind, shard), place, old
end

-- Tells a new ledger what holds for its kind, as the first ledger knows it. A client that was killed
-- while it founded the kind has told the first ledger only.
local function tell_new_ledger(kind, subject)
  for _, field in ipairs({'layout', 'paused', 'turn', 'history'}) do
    local value = redis.call('HGET', calls_of(kind), field)
    if value then
      redis.call('HSETNX', key_of(subject, NAMES.calls), field, value)
    end
  end
  keep_for_good(key_of(subject, NAMES.calls))
end

-- Calls a script for the ledger that a job is in, by the layout that the first ledger goes by. Returns
-- the reply, or an error. In a ledger that was told nothing there is no job to look up or cancel; one
-- that stores a job tells it first, with `tells`.
local function ask(kind, id, call, tells)
  local layout, fault = read_layout(kind, redis.call('HGET', calls_of(kind), 'layout'))
  if not layout then
    return fault
  end
  local subject, place, old = place_of(kind, id, layout)
  local reply = subject and call(subject, place, layout, old) or place
  if reply[1] == 'stale' and reply[3] == '' and not layout.from then
    if tells then
      tell_new_ledger(kind, subject)
    end
    reply = call(subject, tells and place or '0', layout, old)
  end
  if reply[1] == 'stale' then
    return refused('RESHARDING', 'the ledgers of ' .. kind .. ' disagree on the number of shards, as a '
      .. 'reshard leaves them that has just begun: repeat the call in a moment. If that does not help, '
      .. 'run `keyfall get` for this job, after which they agree')
  end
  return reply
end

-- What `get` says of a job. Its letters may be yet to be moved, or on their way, and the latest be
-- among them.
local function find(kind, id)
  return ask(kind, id, function(subject, place, layout, old)
    local reply = scripts.get(keys_of(subject, NAMES.get), {id, place})
    local is_ended = reply[1] == 'absent' or reply[1] == 'dead'
    if is_ended and old and (redis.call('HGET', key_of(old, NAMES.grave), id)
      or redis.call('HLEN', key_of(old, NAMES.leaving)) > 0) then
      return not_arrived(kind, layout)
    end
    return reply
  end)
end

-- What a call that has an id was answered before; or nothing, and whether its lane is known. All calls
-- on a kind are remembered in its first ledger, which is there whatever number it has, so that a repeat
-- is known after any resharding.
local function answered(kind, lane)
  if lane == '' then
    return nil
  end
  local _, reply, known = recall(calls_of(kind), lane, 1)
  return reply, known
end

local function note_answer(kind, lane, known, reply)
  if lane ~= '' then
    local lanes = key_of(subject_of(kind, 0), NAMES.lanes)
    remember(calls_of(kind), lanes, lane, '1', known, reply[2], reply[3])
  end
end
