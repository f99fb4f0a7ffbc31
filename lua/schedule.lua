-- schedule: creates jobs, or replaces present ones. The newest call wins.
--
-- KEYS  1 due       keyfall:{app:module:biz/0}:due
--       2 shadow    keyfall:{app:module:biz/0}:shadow
--       3 lease     keyfall:{app:module:biz/0}:lease
--       4 next      keyfall:{app:module:biz/0}:next
--       5 stats     keyfall:{app:module:biz/0}:stats
--       6 calls     keyfall:{app:module:biz/0}:calls
--       7 lanes     keyfall:{app:module:biz/0}:lanes
--       8 history   keyfall:{app:module:biz/0}:history
--       9… trigger  app:module:biz:id, one for each item; none where triggers live elsewhere
-- ARGV  1 lane, 2 number, 3 who, 4 place, 5 wake channel, 6 subject (app:module:biz/0),
--       7 marker,
--       then for each group of items with the same mode and header: mode (set | absent | present |
--       ordered | debounce:ms | throttle:ms, as in `lib/spacing.lua`), header, number of items,
--       and for each of these items: id, when ('+ms' or '@ms'), payload
-- Reply {'ok', now µs, answers}, followed by `unlisted` (the time at which this ledger began, µs)
--       until a client has registered the kind; {'late', now µs}, or {'stale', now µs, layout} if
--       this ledger has another layout; answers, separated by blanks:
--       created:due replaced:due   pending from now on, due at Unix ms
--       succeeds:due               running: the new job follows when the run has ended
--       elsewhere                  the job belongs to another ledger by now: nothing was done
--       exists absent              the mode forbids the change: nothing was done
--       overtaken:number           mode `ordered`: the stored job has this higher order number
--       =                          stored like the item before it, and due at the same time
--       …!                         no trigger: its name holds a foreign value
-- Holds: all items or none. Refused as a whole, before anything is written, while Redis is
--       full. The same id twice in one call counts as two calls, in order.

local FIXED, HEAD, ALIKE, WIDTH = 8, 7, 3, 3
local due_key, shadow_key, lease_key, next_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stats_key, calls_key, lanes_key, history_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local lane, number, place, marker = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[7]
local now, stamp = now_us()

local past, known, history, unlisted, _, archived, changes =
  past_reply(calls_key, lane, number, stamp, place)
if past then
  past[4] = unlisted
  return past
end

-- The `nil`s make room for four items: a list that grows is copied.
local ids, is_ordered, is_spaced = {nil, nil, nil, nil}, false, false
local at, size, words = HEAD, 0, #ARGV
while at < words do
  is_ordered = is_ordered or ARGV[at + 1] == 'ordered'
  is_spaced = is_spaced or spacing_of(ARGV[at + 1])
  local first = at + ALIKE + 1
  at = at + ALIKE + WIDTH * tonumber(ARGV[at + ALIKE])
  for i = first, at, WIDTH do
    size = size + 1
    ids[size] = ARGV[i]
  end
end
local dues = redis.call('ZMSCORE', due_key, unpack(ids))
local leases = redis.call('HLEN', lease_key) > 0 and redis.call('HMGET', lease_key, unpack(ids))
  or {}
local successors = next_of(next_key, ids, leases)
local before = soonest(due_key, stamp)
local ordering, spacings = is_ordered and open_ordering(), is_spaced and open_spacings()
local archiving = archived and open_archiving()
local archive = archiving and archiving.open_archive(archived, calls_key, stamp, ARGV[3])
-- The records of this call, and with spaced items also those that are there.
local is_read = is_spaced or archive
local present_records = is_spaced and redis.call('HMGET', shadow_key, unpack(ids)) or {}
local spaced, notes = string.sub(due_key, 1, -4) .. 'spaced:', {}

local answers, records, scores, waiting, armed =
  {nil, nil, nil, nil}, {nil, nil, nil, nil}, {nil, nil, nil, nil}, {}, {nil, nil, nil, nil}
local accepted, replaced, stored, news = 0, 0, 0, {}
local accepted_at = ms_of(stamp)
local when, due, text, created, is_ahead, noted
local item_of, orders = {}, {}
local is_left = is_old(place)

-- Neighbours mostly become the same and are due at the same time: the history is told of them
-- together.
local story = noting(new_story(history), changes, calls_key)
local told, told_due, told_from = nil, nil, 1
local function tell_before(i)
  if told then
    tell_all(story, told, '', ids, told_from, i - 1, told_due, '-')
  end
end

local i = 0
at = HEAD
while at < words do
  local mode, order = ARGV[at + 1], is_ordered and ordering.order_of(ARGV[at + 2]) or 0
  local header = begun(ARGV[at + 2], now)
  local opening = record_opening(header, accepted_at)
  local spacing, span = spacing_of(mode)
  local first = at + ALIKE + 1
  at = at + ALIKE + WIDTH * tonumber(ARGV[at + ALIKE])
  for word = first, at, WIDTH do
    i = i + 1
    local id = ids[i]
    local earlier = item_of[id]
    if earlier then
      dues[i], leases[i], successors[i] = dues[earlier], leases[earlier], successors[earlier]
      present_records[i] = present_records[earlier]
    end
    item_of[id] = i
    local leased = leases[i]
    local present = leased or dues[i]
    local there = 0
    if is_ordered and mode == 'ordered' and present then
      there = orders[id] or ordering.order_there(shadow_key, id, successors[i])
    end
    local what
    if is_left and not leased then
      answers[i] = 'elsewhere'
    elseif mode == 'absent' and present then
      answers[i] = 'exists'
    elseif mode == 'present' and not present then
      answers[i] = 'absent'
    elseif there > order then
      answers[i] = 'overtaken:' .. int(there)
    else
      -- Most items of a batch ask for the same delay.
      if ARGV[word + 1] ~= when then
        when = ARGV[word + 1]
        due, text = due_ms(when, now)
        created = 'created:' .. text
        is_ahead = due * 1000 > now
      end
      local its_opening = opening
      if spacing then
        local there = successors[i]
        if not leased then
          there = dues[i] and {dues[i], present_records[i]}
        end
        local since
        due, since = spacings.spaced_due(spacing, span, spaced .. id, due_ms(when, now), now, there,
          notes)
        text, when, is_ahead = int(due), nil, due * 1000 > now
        created = 'created:' .. text
        its_opening = since and record_opening(header, since) or opening
      end
      local record = its_opening .. ARGV[word + 2]
      accepted = accepted + 1
      local replaced_record
      if is_read then
        replaced_record, present_records[i] = present_records[i], record
      end
      if is_ordered then
        orders[id] = order
      end
      if leased then
        replaced = replaced + (successors[i] and 1 or 0)
        if archive and successors[i] then
          local there = successors[i]
          if type(there) ~= 'table' then
            there = {archiving.split_successor(there)}
          end
          archiving.archive_end(archive, 'replaced', id, there[2], nil, whole(there[1]))
        end
        successors[i] = is_read and {text, record} or true
        waiting[#waiting + 1] = id
        waiting[#waiting + 1] = text .. ' ' .. record
        answers[i] = 'succeeds:' .. text
        what = 'succeeds'
      else
        if dues[i] then
          replaced = replaced + 1
          if archive then
            archiving.archive_end(archive, 'replaced', id,
              replaced_record or redis.call('HGET', shadow_key, id), nil,
              archiving.due_text(dues[i]))
          end
          answers[i] = 'replaced:' .. text
          what = 'replaced'
        else
          answers[i] = created
          what = 'scheduled'
        end
        dues[i], armed[i] = text, text
        stored = stored + 2
        records[stored - 1], records[stored] = id, record
        scores[stored - 1], scores[stored] = text, id
        if not is_ahead or due ~= noted then
          note(news, id, due, now)
          noted = due
        end
      end
    end
    if what ~= told or text ~= told_due then
      tell_before(i)
      told, told_due, told_from = what, text, i
    elseif what then
      answers[i] = '='
    end
  end
end
tell_before(size + 1)

-- The first write is one that a full Redis refuses. The key of the records was not read, so its type
-- may be wrong.
local counts = {accepted = at_least_one(accepted), replaced = at_least_one(replaced)}
local counted, fault = raise(stats_key, counts)
if fault then
  return fault
end
fault = archiving and archiving.write_archive(archive, calls_key)
if fault then
  lower(stats_key, counts)
  return fault
end
if counted.accepted == accepted then
  unlisted = begin_ledger(stamp, calls_key, lanes_key)
end
if stored > 0 then
  fault = error_in(redis.pcall('HSET', shadow_key, unpack(records)))
  if fault then
    lower(stats_key, counts)
    return fault
  end
  redis.call('ZADD', due_key, unpack(scores))
end
if #waiting > 0 then
  redis.call('HSET', next_key, unpack(waiting))
end
if #KEYS > FIXED then
  for i = 1, size do
    if armed[i] and not arm(KEYS[FIXED + i], marker, armed[i], now) then
      answers[i] = answers[i] .. '!'
    end
  end
end
write_changes(story, calls_key, now)
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply)
if spacings then
  spacings.write_spacing(notes)
end
wake(ARGV[5], ARGV[6], news, before, now)
write_story(story, history_key, ARGV[3])
return {'ok', stamp, reply, unlisted}
