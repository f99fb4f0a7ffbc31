-- story: the events of one job in the history, a page of them, the newest first. Reads only.
--
-- KEYS  1 calls     keyfall:{app:module:biz/0}:calls
--       2 history   keyfall:{app:module:biz/0}:history
-- ARGV  1 id, 2 before: only entries older than this one, `+` for all, 3 limit: how many entries to
--       look at
-- Reply {'ok', now µs, kept, next, entry, what, by, number, more, note, entry, …}: `kept` is how
--       many entries the history keeps; `next` is the last entry that was looked at, to be `before`
--       for the next page, and empty at the end; then the events of the job and of its kind, each
--       with the id of its entry.
-- Holds: bounded by the limit.

local calls_key, history_key = KEYS[1], KEYS[2]
local id, before, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local _, stamp = now_us()

-- The words `number` and `more` of an entry for this id: they stand in front of the group of ids
-- that includes it.
local function words_of(jobs)
  -- The id is searched for as a whole word. A short id is part of many others, and to go through
  -- their entries word by word would hold Redis up.
  if not string.find(' ' .. jobs .. ' ', ' ' .. id .. ' ', 1, true) then
    return nil
  end
  local number, more
  local place = 0
  for word in string.gmatch(jobs, '%S+') do
    place = word == ':' and 0 or place + 1
    if place == 1 then
      number = word
    elseif place == 2 then
      more = word
    elseif place > 2 and word == id then
      return number, more
    end
  end
end

local story = new_story(redis.call('HGET', calls_key, 'history'))
local entries = redis.call('XREVRANGE', history_key, before == '+' and before or '(' .. before, '-',
  'COUNT', limit)
local reply = {'ok', stamp, int(story and story.kept or 0),
  #entries == limit and entries[limit][1] or ''}
for _, entry in ipairs(entries) do
  local fields = entry[2]
  local jobs = fields[6] or ''
  local number, more = words_of(jobs)
  if jobs == '' then
    number, more = '-', '-'
  end
  if number then
    for _, text in ipairs({entry[1], fields[2], fields[4], number, more, fields[8] or ''}) do
      reply[#reply + 1] = text
    end
  end
end
return reply
