-- Counters are raised before the counted change is made, all of them or none.

local function count_one(counts, name)
  counts[name] = (counts[name] or 0) + 1
end

-- The number of times that an event is counted, or nil for 0.
local function at_least_one(times)
  return times > 0 and times or nil
end

-- The error of a command that must not stop the script.
local function error_in(reply)
  return type(reply) == 'table' and reply.err and reply or nil
end

-- Lowers raised counters again, for a call that fails after all.
local function lower(stats_key, counts)
  for name, times in pairs(counts) do
    -- Not `-times`: Redis refuses the number -0.
    redis.call('HINCRBY', stats_key, name, 0 - times)
  end
end

-- Returns the new values of the counters; or nil and an error, if a counter is damaged or this user
-- may not raise it.
local function raise(stats_key, counts)
  local values, raised = {}, {}
  for name, times in pairs(counts) do
    local value = redis.pcall('HINCRBY', stats_key, name, times)
    if error_in(value) then
      lower(stats_key, raised)
      return nil, value
    end
    values[name], raised[name] = value, times
  end
  return values
end
