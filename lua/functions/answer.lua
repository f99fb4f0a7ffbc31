-- The functions: their arguments and answers. This is the end of the body of the Lua function
-- `answers`.
--
-- src/store/servers/functions.rs writes the definitions before it: LIBRARY, VERSION and SCHEMA; the
-- key names META, KINDS and PAUSED; LEDGER and NAMES, the parts of the key names of a ledger before
-- and behind its subject; the limits …_BYTES and DELAY_MS; and `scripts`, scripts word for word as
-- Lua functions of KEYS and ARGV. The first call runs this body, because the module `string` is not
-- available while a library is loaded.
--
-- FCALL    keyfall_schedule 1 key payload EX s | PX ms | EXAT s | PXAT ms [NX | XX] [CALL id]
-- FCALL    keyfall_cancel   1 key [CALL id]
-- FCALL_RO keyfall_get      1 key
-- FCALL_RO keyfall_version  0

-- The rules of a job key, and the words of their errors, are the same in src/key.rs.

-- The code point that begins at byte `at`, and the position behind it; nil if the text is not
-- UTF-8.
local LEAST = {0x80, 0x800, 0x10000}

local function code_point(text, at)
  local lead = string.byte(text, at)
  local more = lead < 0x80 and 0 or lead >= 0xC2 and lead < 0xE0 and 1
    or lead >= 0xE0 and lead < 0xF0 and 2 or lead >= 0xF0 and lead < 0xF5 and 3
  if not more or more == 0 then
    return more and lead, at + 1
  end
  local point = lead % 2 ^ (6 - more)
  for i = at + 1, at + more do
    local tail = string.byte(text, i)
    if not tail or tail < 0x80 or tail > 0xBF then
      return nil
    end
    point = point * 64 + tail - 0x80
  end
  if point < LEAST[more] or point > 0x10FFFF or point >= 0xD800 and point <= 0xDFFF then
    return nil
  end
  return point, at + more + 1
end

-- White space and control characters beyond ASCII; `odd_in_id` adds 0x80 to 0x9F and 0x2000 to
-- 0x200A.
local BLANK = {[0xA0] = true, [0x1680] = true, [0x2028] = true, [0x2029] = true, [0x202F] = true,
  [0x205F] = true, [0x3000] = true}

-- The position of the first character that an id may not hold; nil if there is none.
local function odd_in_id(id)
  local odd = string.find(id, '[%z\1-\32:*{}\127]')
  if odd or not string.find(id, '[\128-\255]') then
    return odd
  end
  local at = 1
  while at <= #id do
    local point, behind = code_point(id, at)
    if not point or point >= 0x80 and point <= 0x9F or point >= 0x2000 and point <= 0x200A
      or BLANK[point] then
      return at
    end
    at = behind
  end
  return nil
end

local SEGMENTS = {'app', 'module', 'biz', 'id'}

-- The fault of a segment, as the end of an error message; nil if it is valid.
local function fault_of_segment(name, segment)
  local is_id = name == 'id'
  local limit = is_id and ID_BYTES or SEGMENT_BYTES
  if segment == '' then
    return 'its `' .. name .. '` is empty, and a segment has at least one character'
  elseif #segment > limit then
    return 'its `' .. name .. '` has ' .. #segment .. ' bytes, and the limit is ' .. limit
  end
  local odd = is_id and odd_in_id(segment) or not is_id and string.find(segment, '[^A-Za-z0-9_.-]')
  if odd then
    return 'its `' .. name .. '` holds at byte ' .. odd - 1 .. ' what it may not, and ' .. (is_id
      and 'an id may hold any UTF-8 but `:`, `*`, `{`, `}`, white space and control characters'
      or 'app, module and biz hold ASCII letters, digits, `_`, `-` and `.`')
  end
end

-- Returns kind and id of the one key of a call; or nil and the refusal.
local function job_of(keys, usage)
  if #keys ~= 1 then
    return nil, refused('SYNTAX', 'one call takes one key: ' .. usage)
  end
  local key, fault = keys[1], nil
  local _, colons = string.gsub(key, ':', '')
  if colons ~= 3 then
    fault = 'it has ' .. colons + 1 .. ' segment' .. (colons == 0 and '' or 's')
      .. ', and a job key has exactly four, `app:module:biz:id`'
  else
    local at = 0
    for segment in string.gmatch(key .. ':', '([^:]*):') do
      at = at + 1
      fault = fault or fault_of_segment(SEGMENTS[at], segment)
    end
  end
  if fault then
    return nil, refused('INVALIDKEY', shown(key) .. ' is not a job key: ' .. fault)
  end
  return string.match(key, '^(.*):(.*)$')
end

-- Returns the wake channel of this database, as the installation has noted it: its name contains
-- the number of the database. Returns nil and the refusal if the library must not be used on these
-- data.
local function wake_channel()
  local found = redis.call('HMGET', META, 'schema', 'functions', 'server')
  if found[1] and found[1] ~= SCHEMA then
    return nil, refused('INCOMPATIBLE', 'schema ' .. shown(found[1]) .. ' stands under ' .. META
      .. ', and this library, of keyfall ' .. VERSION .. ', writes ' .. SCHEMA
      .. ': run `keyfall functions install` of the version that wrote it')
  elseif not found[1] or not found[2] then
    return nil, refused('INCOMPATIBLE', 'this database was not prepared for functions, ' .. META
      .. ' says: run `keyfall functions install --redis-url redis://host:port/database`, with its '
      .. 'number')
  elseif found[3] then
    return nil, refused('INCOMPATIBLE', 'this is server ' .. shown(found[3]) .. ' that have the jobs '
      .. 'together, and a function sees only those of one: schedule by HTTP (docs/daemon.md)')
  end
  return (string.match(found[2], '^%S+'))
end

-- Parses the options behind key and payload. `known` has the words of all options: true for an
-- option with a value, false for one without. Returns the given options with their values; or nil
-- and the refusal.
local function options(args, from, known, usage)
  local given = {}
  local at = from
  while at <= #args do
    local word = string.upper(args[at])
    if known[word] == nil then
      return nil, refused('SYNTAX', shown(args[at]) .. ' is not an option: ' .. usage)
    elseif given[word] then
      return nil, refused('SYNTAX', word .. ' is given twice: leave one out')
    elseif known[word] and not args[at + 1] then
      return nil, refused('SYNTAX', word .. ' has no value: ' .. usage)
    end
    given[word] = known[word] and args[at + 1] or not known[word]
    at = at + (known[word] and 2 or 1)
  end
  return given
end

-- The lane of this one call, so that a repeat under the same id gets the same answer; empty without
-- an id. It contains function and job, so calls of other functions or jobs may use the same id.
local function lane_of(name, id, call)
  if not call then
    return ''
  elseif #call < 1 or #call > SEGMENT_BYTES or string.find(call, '[^A-Za-z0-9_.-]') then
    return nil, refused('SYNTAX', 'CALL ' .. shown(call) .. ': an id has 1 to ' .. SEGMENT_BYTES
      .. ' ASCII letters, digits, `_`, `-` and `.`')
  end
  return 'call:' .. name .. ':' .. id .. ':' .. call
end

local TIMES = {EX = 1000, PX = 1, EXAT = 1000, PXAT = 1}

-- The due time of a job in the form that scripts read; or nil and the refusal.
local function when_of(given)
  local word
  for unit in pairs(TIMES) do
    if given[unit] and word then
      return nil, refused('SYNTAX', 'EX, PX, EXAT and PXAT are four ways to say when: leave all but '
        .. 'one out')
    end
    word = given[unit] and unit or word
  end
  if not word then
    return nil, refused('INVALIDTIME', 'no time is given: EX seconds, PX milliseconds, or EXAT and '
      .. 'PXAT since 1970; PX 0 is now')
  end
  local text = given[word]
  if not string.find(text, '^%d+$') then
    return nil, refused('INVALIDTIME', word .. ' ' .. shown(text) .. ': a time is a whole number, 0 '
      .. 'or more')
  end
  local ms = tonumber(text) * TIMES[word]
  local is_at = word == 'EXAT' or word == 'PXAT'
  local ahead = is_at and ms - now_us() / 1000 or ms
  if ahead > DELAY_MS then
    return nil, refused('INVALIDTIME', word .. ' ' .. shown(text) .. ' is more than 10 years ahead, '
      .. 'which is the limit: is the unit right?')
  end
  return (is_at and '@' or '+') .. int(ms)
end

-- Registers a kind, as a client does when it stores the first job of a ledger, and applies the rules
-- that cover the kind.
local function make_known(kind, layout, wake)
  apply_rules(kind, layout.ledgers, wake)
  -- From here on, a drop in progress leaves the kind on the list.
  redis.call('HDEL', KINDS, '=' .. kind)
  redis.call('HSETNX', KINDS, kind, layout.text)
  if layout.epoch > 0 then
    redis.pcall('PUBLISH', wake, 'layout ' .. kind .. ' ' .. layout.text)
  end
  redis.pcall('PUBLISH', wake, 'kind ' .. kind)
end

local SCHEDULE = 'FCALL ' .. LIBRARY .. '_schedule 1 app:module:biz:id payload '
  .. 'EX seconds | PX ms | EXAT seconds | PXAT ms [NX | XX] [CALL id]'
local SCHEDULE_WORDS = {EX = true, PX = true, EXAT = true, PXAT = true, NX = false, XX = false,
  CALL = true}

-- The answer to the caller, from the answer of the script for one item.
local function placed(reply)
  local word, due, bang = string.match(reply, '^(%a+):?(%d*)(!?)$')
  return {word, tonumber(due), bang == '!' and 'unarmed' or nil}
end

-- Answers {'created' | 'replaced' | 'succeeds', due ms}, and 'unarmed' behind it if the name of the
-- job holds a foreign value; or {'exists'}, or {'absent'}.
local function scheduled(keys, args)
  local kind, id = job_of(keys, SCHEDULE)
  if not kind then
    return id
  end
  local payload = args[1]
  if not payload then
    return refused('SYNTAX', 'there is no payload: ' .. SCHEDULE)
  elseif #payload > PAYLOAD_BYTES then
    return refused('INVALIDPAYLOAD', 'the payload has ' .. #payload .. ' bytes, and the limit is '
      .. int(PAYLOAD_BYTES) .. ': store it elsewhere, and schedule its name')
  end
  local given, fault = options(args, 2, SCHEDULE_WORDS, SCHEDULE)
  if not given then
    return fault
  elseif given.NX and given.XX then
    return refused('SYNTAX', 'NX and XX leave nothing to do: leave one of them out')
  end
  local when, lane, wake
  when, fault = when_of(given)
  if not when then
    return fault
  end
  lane, fault = lane_of('schedule', id, given.CALL)
  if not lane then
    return fault
  end
  wake, fault = wake_channel()
  if not wake then
    return fault
  end
  local past, is_known = answered(kind, lane)
  if past then
    return placed(past)
  end
  local mode = given.NX and 'absent' or given.XX and 'present' or 'set'
  local reply = ask(kind, id, function(subject, place, layout)
    -- With XX, a kind that does not exist is not registered: the call then leaves nothing behind.
    local is_made_known = mode ~= 'present' and not redis.call('HGET', KINDS, kind)
    if is_made_known then
      make_known(kind, layout, wake)
    end
    local said = scripts.schedule(keys_of(subject, NAMES.schedule, keys[1]), {'', '1', WHO, place,
      wake, subject, MARKER, mode, HEADER, '1', id, when, payload})
    local unlisted = said[1] == 'ok' and said[4]
    if unlisted and not is_made_known then
      make_known(kind, layout, wake)
    end
    if unlisted then
      -- The field can be deleted unconditionally: no other client comes in between.
      redis.call('HDEL', key_of(subject, NAMES.calls), 'unlisted')
    end
    return said
  end, true)
  if reply.err then
    return reply
  end
  note_answer(kind, lane, is_known, reply)
  return placed(reply[3])
end

local CANCEL = 'FCALL ' .. LIBRARY .. '_cancel 1 app:module:biz:id [CALL id]'

-- Answers 'cancelled', 'running' or 'absent'.
local function cancelled(keys, args)
  local kind, id = job_of(keys, CANCEL)
  if not kind then
    return id
  end
  local given, fault = options(args, 1, {CALL = true}, CANCEL)
  if not given then
    return fault
  end
  local lane, wake
  lane, fault = lane_of('cancel', id, given.CALL)
  if not lane then
    return fault
  end
  wake, fault = wake_channel()
  if not wake then
    return fault
  end
  local past, is_known = answered(kind, lane)
  if past then
    return past
  end
  local reply = ask(kind, id, function(subject, place)
    return scripts.cancel(keys_of(subject, NAMES.cancel, keys[1]), {'', '1', WHO, place, wake, kind,
      MARKER, id})
  end)
  if reply.err then
    return reply
  end
  note_answer(kind, lane, is_known, reply)
  return reply[3]
end

-- Adds the contents of a record to the fields of the answer. Returns the refusal if it cannot.
local function read_record(key, record, fields)
  local header, steps, payload = split_record(record)
  local is_json, told = pcall(cjson.decode, header)
  if not is_json or type(told) ~= 'table' or type(told.v) ~= 'number' then
    return refused('DAMAGED', 'the record of ' .. key .. ' is damaged: run `keyfall audit`')
  elseif told.v > RECORD then
    return refused('INCOMPATIBLE', 'the record of ' .. key .. ' has version ' .. int(told.v)
      .. ', and this library, of keyfall ' .. VERSION .. ', knows ' .. RECORD
      .. ': run `keyfall functions install` of the version that wrote it')
  end
  fields.attempts = (fields.attempts or 0) + (told.attempts or 0)
  fields.first_scheduled_at = tonumber(string.match(steps, '^%d+') or nil)
  fields.last_error = told.error
  fields.headers = told.headers and {map = told.headers}
  fields.payload = payload
end

local GET = 'FCALL_RO ' .. LIBRARY .. '_get 1 app:module:biz:id'

-- Answers a map; nil if there is neither a job nor a dead letter of this name. Times in Unix ms.
local function looked_up(keys, args)
  local kind, id = job_of(keys, GET)
  if not kind then
    return id
  elseif #args > 0 then
    return refused('SYNTAX', shown(args[1]) .. ' is too much: ' .. GET)
  end
  local _, fault = wake_channel()
  if fault then
    return fault
  end
  local reply = find(kind, id)
  local fields, record = {state = reply[1]}, nil
  if reply.err then
    return reply
  elseif reply[1] == 'absent' then
    return nil
  elseif reply[1] == 'leased' then
    local ends = tonumber(reply[3])
    local _, claims, _, due, flag = split_lease(reply[4])
    fields.state = ends * 1000 > tonumber(reply[2]) and 'running' or 'lapsed'
    fields.due, fields.lease_ends, fields.attempts = due, ends, claims
    fields.cancelled = flag == 'cancelled' or nil
    fields.successor_due = reply[6] ~= '' and split_successor(reply[6]) or nil
    record = reply[5]
  else
    fields.due = tonumber(reply[3])
    fields.letter = reply[1] == 'dead' and tonumber(reply[4]) or nil
    record = reply[#reply]
  end
  fault = read_record(keys[1], record, fields)
  if fault then
    return fault
  end
  if reply[1] == 'pending' and fields.attempts > 0 then
    fields.state = 'retrying'
  end
  return {map = fields}
end

return {schedule = scheduled, cancel = cancelled, get = looked_up, version = function()
  return VERSION
end}
