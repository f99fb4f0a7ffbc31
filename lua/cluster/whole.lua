-- On a cluster, each script on a ledger begins with this part, and gets all keys of the ledger
-- behind its own keys, in the order of `found`. A node that took over while a slot was moving does
-- not know that some of the keys have left. So the script itself refuses the call before it reads
-- or writes anything else:
--
--   TORN parts   these parts are missing, though the ledger once had all: `due shadow`
--   UNFOUNDED    the ledger has no key here; allowed if MAY_BE_NEW, which is set before this part
--
-- A ledger that never had all its keys has no placeholder in any of them. Its history, which cannot
-- hold a placeholder, is never its only key.
do
  local PARTS, SETS = 13, 5
  local ledger = {}
  for i = PARTS, 1, -1 do
    ledger[i] = table.remove(KEYS)
  end
  local there = redis.call('EXISTS', unpack(ledger))
  if there == 0 and not MAY_BE_NEW then
    return {err = 'UNFOUNDED nothing of the ledger is here'}
  elseif there > 0 and there < PARTS then
    local missing = {}
    local was_whole = there == redis.call('EXISTS', ledger[PARTS])
    for i, key in ipairs(ledger) do
      local placeholder = i < PARTS and redis.pcall(i <= SETS and 'ZSCORE' or 'HGET', key, ':')
      was_whole = was_whole or type(placeholder) == 'string'
      if redis.call('EXISTS', key) == 0 then
        missing[#missing + 1] = string.match(key, '[^:]*$')
      end
    end
    if was_whole then
      return {err = 'TORN ' .. table.concat(missing, ' ')}
    end
  end
end
