-- append: adds an entry to an acknowledged stream, together with a note that it was written, so that
-- a server that forgets one forgets the other.
--
-- KEYS  1 stream, 2 written   orders, orders:closers:written
-- ARGV  1 about how many entries are kept, 2 lease of the entry, 3.. names and values of its fields
-- Reply the id of the entry
-- Holds: what a trim may have taken is known for ever: all that is older than what it left.

-- Fails before anything is written, if it is no hash.
redis.call('HGET', KEYS[2], 'oldest')
local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 3))
redis.call('HSET', KEYS[2], id, ARGV[2])
if redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[1]) > 0 then
  local left = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
  redis.call('HSET', KEYS[2], 'oldest', left[1][1])
end
return id
