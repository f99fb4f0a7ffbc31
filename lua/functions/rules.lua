-- The rules that cover a kind: its pause, its limit, and the terms of its archive and its copy. A
-- client applies them as well when it registers a kind, src/store/kinds; in `keyfall:meta` each is a
-- field, as src/store/kinds/limits.rs and terms.rs say.

-- The prefixes that can have a rule for a kind, the longest first.
local function prefixes_of(kind)
  return {kind .. ':', string.match(kind, '^.*:'), string.match(kind, '^[^:]*:'), ''}
end

-- The rules of one sort for these scopes, in their order; false for a scope without a rule.
local function rules_of(sort, scopes)
  local fields = {}
  for i, scope in ipairs(scopes) do
    fields[i] = sort .. ' ' .. scope
  end
  return redis.call('HMGET', META, unpack(fields))
end

local function apply_pause(kind, ledgers)
  local rules = redis.call('HGETALL', PAUSED)
  local rule, since
  for i = 1, #rules, 2 do
    local is_meant = string.sub(kind .. ':', 1, #rules[i]) == rules[i]
    if is_meant and (not rule or #rules[i] < #rule) then
      rule, since = rules[i], rules[i + 1]
    end
  end
  for shard = 0, rule and ledgers - 1 or -1 do
    redis.call('HSETNX', key_of(subject_of(kind, shard), NAMES.calls), 'paused', since)
  end
end

-- Gap, burst and most, as `limit` reads them, of the bounds in a rule: `jobs µs burst concurrency`,
-- 0 for none.
local function bounds_of(text)
  local jobs, time, burst, most = string.match(text, '^(%d+) (%d+) (%d+) (%d+)$')
  local gap = jobs == '0' and 0 or math.ceil(time / jobs)
  return int(gap), (gap == 0 or burst == '0') and '1' or burst, most
end

-- Of the limits that cover a kind, the narrowest holds. Several ledgers and several kinds share a
-- limit: then each begins without a share, and workers give it one when its jobs wait.
local function apply_limit(kind, prefixes, ledgers, wake)
  local rules = rules_of('limit', {kind, prefixes[2], prefixes[3]})
  local rule = rules[1] or rules[2] or rules[3]
  local own, tab = rule or '', string.find(rule or '', '\t', 1, true)
  local terms = {'', '0', '0', '0', ''}
  if tab then
    own = string.sub(rule, 1, tab - 1)
    local by, bounds, weights =
      string.match(string.sub(rule, tab + 1), '^(%S+) (%d+ %d+ %d+ %d+) ?(.*)$')
    if not by then
      return
    end
    terms = {by, bounds_of(bounds)}
    terms[5] = weights
  end
  local set, bounds = string.match(own, '^(%d+) (%d+ %d+ %d+ %d+) ')
  if not set then
    -- There is none, or another program wrote it.
    return
  end
  local gap, burst, most = bounds_of(bounds)
  local share = (ledgers > 1 or not rules[1]) and {'0', '0', set} or {'', '', ''}
  for shard = 0, ledgers - 1 do
    local subject = subject_of(kind, shard)
    scripts.limit(keys_of(subject, NAMES.limit), {'', '0', WHO, wake, subject, gap, burst, most, rule,
      terms[1], terms[2], terms[3], terms[4], terms[5], share[1], share[2], share[3]})
  end
end

-- How the terms in a rule begin, and the time at which they were set behind them.
local TERMS = {archive = '^(%d+ %d+ %d+ %d+) (%d+)( .*)$', copy = '^(%d+) (%d+)( .*)$'}

-- The rule of the longest prefix that has terms holds, since the last change of any of them.
local function apply_terms(kind, prefixes, ledgers)
  for sort, pattern in pairs(TERMS) do
    local holds, newest = nil, 0
    for _, rule in ipairs(rules_of(sort, prefixes)) do
      local terms, set, by = string.match(rule or '', pattern)
      if not terms then
        terms, set, by = string.match(rule or '', '^(off) (%d+)( .*)$')
      end
      if terms then
        newest = math.max(newest, tonumber(set))
        if not holds or holds.terms == 'off' and terms ~= 'off' then
          holds = {terms = terms, by = by}
        end
      end
    end
    for shard = 0, holds and ledgers - 1 or -1 do
      local text = holds.terms .. ' ' .. int(newest) .. holds.by
      scripts.terms(keys_of(subject_of(kind, shard), NAMES.terms), {sort, text, int(newest)})
    end
  end
end

local function apply_rules(kind, ledgers, wake)
  local prefixes = prefixes_of(kind)
  apply_pause(kind, ledgers)
  apply_limit(kind, prefixes, ledgers, wake)
  apply_terms(kind, prefixes, ledgers)
end
