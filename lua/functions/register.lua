-- Registers the functions; the first call builds the code that they share.
local ANSWERS

local function answer(name, keys, args)
  ANSWERS = ANSWERS or answers()
  return ANSWERS[name](keys, args)
end

-- Registers one function, with the conditions under which Redis runs it. No function declares the
-- keys of the ledger, so none may run on a cluster.
local function register(name, ...)
  redis.register_function{
    function_name = LIBRARY .. '_' .. name,
    callback = function(keys, args)
      return answer(name, keys, args)
    end,
    flags = {'no-cluster', ...},
  }
end

register('schedule')
register('cancel', 'allow-oom')
register('get', 'no-writes')
register('version', 'no-writes')
