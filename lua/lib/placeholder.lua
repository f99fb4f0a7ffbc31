-- On a cluster every key of a ledger holds a placeholder, so that it exists even if it is empty: a
-- node that hands a slot over cannot tell an empty key from one that has left, and refuses calls on
-- both. No id, and no `id:number`, has this name; in a sorted set it comes last.

local PLACEHOLDER = ':'

-- The number of members of a sorted set, without the placeholder.
local function members(set)
  return redis.call('ZCOUNT', set, '-inf', '(inf')
end

-- The number of fields of a hash, without the placeholder.
local function fields(hash)
  return redis.call('HLEN', hash) - redis.call('HEXISTS', hash, PLACEHOLDER)
end

-- The fields of a hash and their values in turn, without the placeholder.
local function contents(hash)
  local all, found = redis.call('HGETALL', hash), {}
  for i = 1, #all, 2 do
    if all[i] ~= PLACEHOLDER then
      found[#found + 1], found[#found + 2] = all[i], all[i + 1]
    end
  end
  return found
end

-- Deletes all fields of a hash but the placeholder.
local function clear(hash)
  local found = contents(hash)
  for i = 1, #found, 2 do
    redis.call('HDEL', hash, found[i])
  end
end
