-- unlist: takes a kind off the list, unless somebody has made it known since it was marked.
--
-- KEYS  1 kinds  keyfall:kinds
-- ARGV  1 kind (app:module:biz)
-- Reply {'ok', now µs, unlisted}: one, or zero if it was not marked
-- Holds: may be repeated, and be late. Works while Redis is full. The mark is the field `=kind`,
--       which whoever makes a kind known takes away, before the kind is listed.

local _, stamp = now_us()
local mark = '=' .. ARGV[1]
local unlisted = redis.call('HEXISTS', KEYS[1], mark)
if unlisted == 1 then
  redis.call('HDEL', KEYS[1], ARGV[1], mark)
end
return {'ok', stamp, unlisted}
