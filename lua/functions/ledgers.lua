-- The ledgers of a kind, and the one that has a job. All ledgers are in this one Redis and a
-- function is atomic, so data that it has read stay true until it returns. A call on a job that a
-- reshard is still to move is refused: the job moves in a moment, and to move it here would take a
-- second implementation of moves.

-- The caller of all functions, as the history names it.
local WHO = 'fcall'

local function refused(code, text)
  return redis.error_reply(code .. ' ' .. text)
end

-- A text from a caller in the form for an error: one line of ASCII, shortened.
local function shown(text)
  local cut = #text > 120
  text = string.gsub(string.sub(text, 1, 120), '[^ -~]', '?')
  return '"' .. text .. '"' .. (cut and '...' or '')
end

-- The name of a key of a ledger; `part` is the text behind the subject. `keys_of` returns several
-- such names, and behind them the trigger of a job.
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

-- The key with the fields that all ledgers of a kind share, however many there are.
local function calls_of(kind)
  return key_of(subject_of(kind, 0), NAMES.calls)
end

-- Parses a layout: how many ledgers a kind has, its epoch and, during a reshard, how many it had
-- before. A kind or ledger without a layout has the first one. Returns nil and the refusal if the
-- text cannot be read.
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

-- Returns the subject of the ledger that has a job, and the place that calls on it carry; if the
-- job moves in a reshard, also the subject of the ledger that it left, which can still have letters
-- of it. Returns nil and the refusal if the job is still to be moved, or if the ledger that it
-- leaves has another layout, so that others may still store it there.
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

-- Tells a new ledger the fields that hold for the whole kind, from the first ledger. A client that
-- was killed while it founded the kind has told only the first ledger.
local function tell_new_ledger(kind, subject)
  for _, field in ipairs({'layout', 'paused', 'turn', 'history'}) do
    local value = redis.call('HGET', calls_of(kind), field)
    if value then
      redis.call('HSETNX', key_of(subject, NAMES.calls), field, value)
    end
  end
  keep_for_good(key_of(subject, NAMES.calls))
end

-- Calls a script on the ledger that has a job, by the layout of the first ledger. Returns the reply
-- or an error. A ledger that was told no layout has no job to look up or cancel; a call that stores
-- a job tells it the layout first, with `tells`.
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

-- The reply of `get` for a job. If dead letters of it are still to be moved, or are in a batch, the
-- latest can be among them: then the call is refused.
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

-- The earlier answer to a call with this id, or nil; and whether its lane is known. The first
-- ledger of a kind remembers all such calls: it exists with any number of ledgers, so a repeat is
-- recognised after a reshard.
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
