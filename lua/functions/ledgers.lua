-- The ledgers of a kind: which of them has a job, and the calls that find out, as src/client/shelf.rs
-- and src/store/moving.rs do it. All ledgers are in this one Redis and nobody comes in between, so a
-- job that is not yet where it belongs is moved there in the same call.

-- How often a call goes by another layout before it is refused. After the first time all ledgers
-- go by the newest that was found, so more is needed only where they contradict each other.
local LOOKS = 4

-- How many batches are moved in one call: one that was kept aside, that of this job, and each of them
-- with another number.
local MOVES = 4

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

local function follows(one, other)
  if one.epoch ~= other.epoch then
    return one.epoch > other.epoch
  end
  return not one.from and other.from ~= nil
end

-- The ledger that a job belongs to, and the one that it may still be in, if that is another.
local function shards_of(id, layout)
  local shard, before = shard_of(id, layout.shards), layout.from and shard_of(id, layout.from)
  return shard, before ~= shard and before or nil
end

-- The refusal of a call that came to no end.
local function undecided(kind)
  return refused('RESHARDING', 'the ledgers of ' .. kind .. ' contradict each other, and nothing was '
    .. 'done with the job: try again, or look with `keyfall get`, which brings them to one layout')
end

-- Makes all ledgers of a kind go by the newest layout that is known, as clients do when one of them
-- has refused a call. Returns it; or nothing, and why not.
local function agree(kind, layout, told)
  local first = calls_of(kind)
  local texts = {told, redis.call('HGET', KINDS, kind), redis.call('HGET', first, 'layout')}
  for i = 1, 3 do
    local other, fault = read_layout(kind, texts[i])
    if not other then
      return nil, fault
    end
    layout = follows(other, layout) and other or layout
  end
  scripts.layout({KINDS}, {kind, layout.text, ''})
  local kept = redis.call('HMGET', first, 'paused', 'history')
  local news = {'layout', layout.text, ''}
  for i, field in ipairs({'paused', 'history'}) do
    if kept[i] then
      news[#news + 1], news[#news + 2] = field, kept[i]
    end
  end
  for shard = 0, layout.ledgers - 1 do
    scripts.layout({key_of(subject_of(kind, shard), NAMES.calls)}, news)
  end
  return layout
end

-- Puts what `take` has handed out where it belongs, and drops it there. Returns what the last ledger
-- said: `ok`, or why it does not take it in.
local function deliver(kind, from, layout, taken, wake)
  local batch, fence = taken[4], taken[5]
  local parcels, reply = {}, nil
  for at = 6, #taken, 5 do
    local id = taken[at + 1]
    local shard = taken[at] == 'counters' and 0 or shard_of(id, layout.shards)
    local parcel = parcels[shard]
    if not parcel then
      local subject = subject_of(kind, shard)
      parcel = {keys = keys_of(subject, NAMES.put),
        args = {WHO, int(layout.epoch), from, batch, fence, wake, subject, MARKER}}
      parcels[shard] = parcel
    end
    -- One trigger for each, be it needed or not.
    parcel.keys[#parcel.keys + 1] = kind .. ':' .. id
    for i = at, at + 4 do
      parcel.args[#parcel.args + 1] = taken[i]
    end
  end
  for _, parcel in pairs(parcels) do
    reply = scripts.put(parcel.keys, parcel.args)
    if reply[1] ~= 'ok' then
      return reply
    end
  end
  scripts.drop(keys_of(from, NAMES.drop), {batch})
  return reply
end

-- Moves a job out of a ledger that it does not belong to any more, and first what somebody else took
-- out and did not put anywhere. Returns what became of it: `taken`, `leased` if it runs and stays, or
-- `absent`; or nothing, and what was said against it.
local function move_out(kind, id, shard, layout, wake)
  local from, late, above, answer = subject_of(kind, shard), '0', '0', nil
  for _ = 1, MOVES do
    local taken = scripts.take(keys_of(from, NAMES.take),
      {int(layout.epoch), late, above, not answer and id or nil})
    if taken.err or taken[1] == 'stale' then
      return nil, taken
    end
    if taken[1] == 'ok' then
      answer = answer or taken[3]
    end
    local put = #taken > 5 and deliver(kind, from, layout, taken, wake) or {'ok'}
    if put[1] == 'late' then
      late, above = taken[4], put[3]
    elseif put[1] ~= 'ok' then
      return nil, put
    elseif answer then
      return answer
    end
  end
  return nil, undecided(kind)
end

-- The subject of the ledger that a job is in, and by which place it is asked for there; or nothing,
-- and what was said against it.
local function place_of(kind, id, layout, wake)
  local shard, before = shards_of(id, layout)
  if before then
    local moved, fault = move_out(kind, id, before, layout, wake)
    if not moved then
      return nil, fault
    elseif moved == 'leased' then
      return subject_of(kind, before), int(layout.epoch) .. '-'
    end
  end
  return subject_of(kind, shard), int(layout.epoch)
end

-- Calls a script for the ledger that a job is in, given what the list of kinds says. Returns its reply,
-- and by which layout; or an error.
local function ask(kind, id, listed, wake, call)
  local layout, fault = read_layout(kind, listed)
  for _ = 1, LOOKS do
    if not layout then
      return fault
    end
    local subject, place = place_of(kind, id, layout, wake)
    local reply = subject and call(subject, place) or place
    if reply[1] ~= 'stale' then
      return reply, layout
    end
    layout, fault = agree(kind, layout, reply[3])
  end
  return undecided(kind)
end

-- What `get` would say of a job if what is kept aside in the ledger that it leaves were where it
-- belongs; nothing if it is not among that.
local function look_aside(kind, id, from, to)
  from = subject_of(kind, from)
  local batch = redis.call('HGET', key_of(from, NAMES.calls), 'batch')
  local arrived = redis.call('HGET', key_of(subject_of(kind, to), NAMES.calls), 'from/' .. from)
  if not batch or batch == arrived then
    return nil
  end
  local aside, letter = contents(key_of(from, NAMES.leaving)), nil
  for i = 1, #aside, 2 do
    local at, record = string.match(aside[i + 1], '^(%d+) (.*)$')
    local number = string.sub(aside[i], 1, #id + 1) == id .. ':' and string.sub(aside[i], #id + 2)
    if aside[i] == id then
      return {'pending', '', at, record}
    elseif number and number ~= '' and not (letter and tonumber(letter[3]) > tonumber(at)) then
      letter = {'dead', '', at, number, record}
    end
  end
  return letter
end

-- What a ledger says of a job; or nothing, and by which newer layout it goes. One that was not told of
-- this layout yet is asked by its own, since nothing can change meanwhile.
local function get_in(kind, id, shard, layout)
  local keys = keys_of(subject_of(kind, shard), NAMES.get)
  local reply = scripts.get(keys, {id, int(layout.epoch)})
  if reply[1] ~= 'stale' then
    return reply
  end
  local own, fault = read_layout(kind, reply[3])
  if not own or follows(own, layout) then
    return nil, own, fault
  end
  return scripts.get(keys, {id, int(own.epoch)})
end

-- The same, of all the places in which a job may be.
local function get_by(kind, id, layout)
  local shard, before = shards_of(id, layout)
  local reply, newer, fault = get_in(kind, id, shard, layout)
  local is_here = reply and (reply[1] == 'pending' or reply[1] == 'leased')
  if not before or not reply or is_here then
    return reply, newer, fault
  end
  local letters = {reply}
  reply, newer, fault = get_in(kind, id, before, layout)
  if not reply or reply[1] == 'pending' or reply[1] == 'leased' then
    return reply, newer, fault
  end
  letters[2], letters[3] = reply, look_aside(kind, id, before, shard)
  if letters[3] and letters[3][1] == 'pending' then
    return letters[3]
  end
  local latest = letters[1]
  for i = 2, #letters do
    local is_later = latest[1] ~= 'dead' or letters[i][1] == 'dead'
      and tonumber(letters[i][3]) > tonumber(latest[3])
    latest = is_later and letters[i] or latest
  end
  return latest
end

-- What `get` says of a job, wherever it is, while nothing is written; or an error.
local function find(kind, id)
  local layout, fault = read_layout(kind, redis.call('HGET', KINDS, kind))
  for _ = 1, LOOKS do
    if not layout then
      return fault
    end
    local reply
    reply, layout, fault = get_by(kind, id, layout)
    if reply then
      return reply
    end
  end
  return undecided(kind)
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
