-- terms: sets whether the ends or the changes of jobs are noted for an archive or a copy, and how.
--
-- KEYS  1 calls   keyfall:{app:module:biz/0}:calls
--       2 lanes   keyfall:{app:module:biz/0}:lanes
-- ARGV  1 field: `archive` or `copy`, 2 terms: of an archive as in `lib/archive.lua`, of a copy
--       `most set who`; `off set who` for none, 3 set: when they were set, Unix ms
-- Reply {'ok', now µs}
-- Holds: the newest terms hold, so it may be repeated, and be late. Works while Redis is full.
--       Records that wait stay. While changes are noted, as many may wait as the terms of a copy
--       say. Without a copy, none are noted, and those that wait go.

local calls_key, lanes_key, field, terms = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local SET = {archive = '^%d+ %d+ %d+ %d+ (%d+)', copy = '^%d+ (%d+)'}
local _, stamp = now_us()

local present = redis.call('HGET', calls_key, field) or ''
local set = string.match(present, SET[field]) or string.match(present, '^off (%d+)')
-- A full Redis lets a script run on if its first write is a removal, even an empty one.
redis.call('HDEL', calls_key, '')
if tonumber(set or 0) <= tonumber(ARGV[3]) then
  redis.call('HSET', calls_key, field, terms)
  keep_for_good(calls_key, lanes_key)
  local is_off = string.sub(terms, 1, 4) == 'off '
  local changes = field == 'copy' and redis.call('HGET', calls_key, 'changes')
  if changes then
    -- The version stays, so that a copy that begins again does not take the ledger for an older one.
    local first = is_off and 'over' or string.match(terms, '^%d+')
    redis.call('HSET', calls_key, 'changes',
      (string.gsub(changes, is_off and '^%S+' or '^%d+', first)))
  end
  if field == 'copy' and is_off then
    redis.call('UNLINK', string.sub(calls_key, 1, -6) .. 'changes')
  end
end
return {'ok', stamp}
