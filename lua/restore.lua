-- restore: stores jobs and dead letters of a backup, with their steps. A pending job of the same
-- name stays, unless the mode is `set`.
--
-- KEYS  1 due       keyfall:{app:module:biz/0}:due
--       2 shadow    keyfall:{app:module:biz/0}:shadow
--       3 lease     keyfall:{app:module:biz/0}:lease
--       4 dead      keyfall:{app:module:biz/0}:dead
--       5 grave     keyfall:{app:module:biz/0}:grave
--       6 stats     keyfall:{app:module:biz/0}:stats
--       7 calls     keyfall:{app:module:biz/0}:calls
--       8 lanes     keyfall:{app:module:biz/0}:lanes
--       9 history   keyfall:{app:module:biz/0}:history
--      10… trigger  app:module:biz:id, one for each item; none where triggers live elsewhere
-- ARGV  1 lane, 2 number, 3 who, 4 place, 5 wake channel, 6 subject (app:module:biz/0),
--       7 marker,
--       then for each item: id, state (pending | dead), mode (absent | set, for pending), due time
--       or time of death (Unix ms), header, story (accepted-ms step@ms …; empty for a job that is
--       accepted now), payload
-- Reply {'ok', now µs, answers}, followed by `unlisted` as in schedule; {'late', now µs}, or
--       {'stale', now µs, layout} if this ledger has another layout; answers, separated by blanks:
--       created:due replaced:due   pending from now on, due at Unix ms, even if that is long past
--       buried:number              a dead letter with this number
--       exists                     a job of this name is pending, or a letter of it died at the
--                                  same time
--       running                    a job of this name runs: nothing was done
--       elsewhere                  the job or letter belongs to another ledger by now
--       …!                         no trigger: its name holds a foreign value, or is the adopted
--                                  key
-- Holds: a repeat changes nothing, as long as the restored jobs and letters exist. Of letters that
--       their id does not lead to, the first 64 of one time of death are looked at. All items or
--       none. Refused as a whole, before anything is written, while Redis is full. The same id
--       twice in one call counts as two calls, in order. Letters are not trimmed here.

local FIXED, HEAD, WIDTH = 9, 7, 7
local due_key, shadow_key, lease_key, dead_key, grave_key =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local stats_key, calls_key, lanes_key, history_key = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local lane, number, place, marker = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[7]
local now, stamp = now_us()

local past, known, history, unlisted, _, archived, changes =
  past_reply(calls_key, lane, number, stamp, place)
if past then
  past[4] = unlisted
  return past
end

local items, ids = ARGV, {}
for i = 1, (#items - HEAD) / WIDTH do
  ids[i] = items[HEAD + (i - 1) * WIDTH + 1]
end
local dues = redis.call('ZMSCORE', due_key, unpack(ids))
local leases = redis.call('HMGET', lease_key, unpack(ids))
local numbers = redis.call('HMGET', grave_key, unpack(ids))
local before = soonest(due_key, stamp)
local archive = archived and open_archive(archived, calls_key, stamp, ARGV[3])

-- The letters of an id, by time of death, the oldest first.
local letters = {}
for i, id in ipairs(ids) do
  if items[HEAD + (i - 1) * WIDTH + 2] == 'dead' and not letters[id] then
    letters[id] = {}
    local names = {}
    for letter in string.gmatch(numbers[i] or '', '%S+') do
      table.insert(letters[id], {number = letter})
      table.insert(names, id .. ':' .. letter)
    end
    local deaths = #names > 0 and redis.call('ZMSCORE', dead_key, unpack(names)) or {}
    for place, letter in ipairs(letters[id]) do
      letter.died = tonumber(deaths[place] or 0)
    end
  end
end
redis.call('ZCARD', dead_key)

-- How many letters of one time of death are looked at.
local SAME_TIME = 64

-- Whether a letter of this id and time of death is stored. The id leads to its last letters only.
local function is_stored(letter)
  local died = int(letter.died)
  local names = redis.call('ZRANGEBYSCORE', dead_key, died, died, 'LIMIT', 0, SAME_TIME)
  for _, name in ipairs(names) do
    if string.match(name, '^(.*):%d+$') == letter.id then
      return true
    end
  end
  return false
end

-- Puts a letter in its place among the letters of its id. Returns false if one of them has the same
-- time of death.
local function placed(of_id, letter)
  local at = #of_id + 1
  while at > 1 and of_id[at - 1].died >= letter.died do
    at = at - 1
    if of_id[at].died == letter.died then
      return false
    end
  end
  if is_stored(letter) then
    return false
  end
  table.insert(of_id, at, letter)
  return true
end

-- The numbers of the last letters of an id, which are found by the id alone.
local function last_numbers(of_id)
  local found = {}
  for at = math.max(1, #of_id - FOUND_BY_ID + 1), #of_id do
    found[#found + 1] = of_id[at].number
  end
  return table.concat(found, ' ')
end

local answers, buried, armed, pending = {}, {}, {}, {}
local accepted, replaced = 0, 0
local news = {}
local told = noting(new_story(history), changes, calls_key)
for i, id in ipairs(ids) do
  local at = HEAD + (i - 1) * WIDTH
  local when, header, story = items[at + 4], items[at + 5], items[at + 6]
  if story == '' then
    header, story = begun(header, now), int(math.floor(now / 1000))
  end
  local record = record_opening(header, story) .. items[at + 7]
  if is_old(place) and (items[at + 2] == 'dead' or not leases[i]) then
    answers[i] = 'elsewhere'
  elseif items[at + 2] == 'dead' then
    local letter = {id = id, died = tonumber(when), record = record, item = i}
    if placed(letters[id], letter) then
      buried[#buried + 1] = letter
      answers[i] = 'buried:'
    else
      answers[i] = 'exists'
    end
  elseif leases[i] then
    answers[i] = 'running'
  elseif (dues[i] or pending[id]) and items[at + 3] ~= 'set' then
    answers[i] = 'exists'
  else
    local is_new = not (dues[i] or pending[id])
    accepted = accepted + 1
    replaced = replaced + (is_new and 0 or 1)
    answers[i] = (is_new and 'created:' or 'replaced:') .. when
    if archive and not is_new then
      local there = pending[id]
        or {score = due_text(dues[i]), record = redis.call('HGET', shadow_key, id)}
      archive_end(archive, 'replaced', id, there.record, nil, there.score)
    end
    tell(told, 'restored', '', id, when, '-')
    pending[id] = {score = when, record = record}
    armed[i] = when
    note(news, id, tonumber(when), now)
  end
end

-- The first write is one that a full Redis refuses. The key of the records was not read, so its type
-- may be wrong.
local shadows, scores = {}, {}
for id, job in pairs(pending) do
  shadows[#shadows + 1] = id
  shadows[#shadows + 1] = job.record
  scores[#scores + 1] = job.score
  scores[#scores + 1] = id
end
accepted = accepted + #buried
local counts = {
  accepted = at_least_one(accepted),
  replaced = at_least_one(replaced),
  buried = at_least_one(#buried),
}
local counted, fault = raise(stats_key, counts)
if fault then
  return fault
end
fault = write_archive(archive, calls_key)
if fault then
  lower(stats_key, counts)
  return fault
end
if #shadows > 0 then
  fault = error_in(redis.pcall('HSET', shadow_key, unpack(shadows)))
  if fault then
    lower(stats_key, counts)
    return fault
  end
  redis.call('ZADD', due_key, unpack(scores))
end
if counted.accepted == accepted then
  unlisted = begin_ledger(stamp, calls_key, lanes_key)
end
local before_them = #buried > 0 and counted.buried - #buried + skipped(stats_key)
for place, letter in ipairs(buried) do
  letter.number = int(before_them + place)
  answers[letter.item] = 'buried:' .. letter.number
  tell(told, 'buried', '', letter.id, letter.number, '-')
  local name = letter.id .. ':' .. letter.number
  redis.call('ZADD', dead_key, int(letter.died), name)
  redis.call('HSET', grave_key, name, letter.record)
end
for _, letter in ipairs(buried) do
  redis.call('HSET', grave_key, letter.id, last_numbers(letters[letter.id]))
end
if #KEYS > FIXED then
  for i, due in pairs(armed) do
    if not arm(KEYS[FIXED + i], marker, due, now, pending[ids[i]].record) then
      answers[i] = answers[i] .. '!'
    end
  end
end
write_changes(told, calls_key, now)
local reply = table.concat(answers, ' ')
remember(calls_key, lanes_key, lane, ARGV[2], known, stamp, reply)
wake(ARGV[5], ARGV[6], news, before, now)
write_story(told, history_key, ARGV[3])
return {'ok', stamp, reply, unlisted}
