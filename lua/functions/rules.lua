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

-- Where the group of a job is found, the bounds of a group, and the weights, of the part of a rule
-- behind its tab; nil if another program wrote it.
local function terms_of(text)
  if text == '' then
    return {'', '0', '0', '0', ''}
  end
  local by, bounds, weights = string.match(text, '^(%S+) (%d+ %d+ %d+ %d+) ?(.*)$')
  if by then
    local gap, burst, most = bounds_of(bounds)
    return {by, gap, burst, most, weights}
  end
end

-- Of the limits that cover a kind, the narrowest holds. Several ledgers and several kinds share a
-- limit: then each begins without a share, and workers give it one when its jobs wait.
local function apply_limit(kind, prefixes, ledgers, wake)
  local rule, place, set, bounds, terms
  for i, text in ipairs(rules_of('limit', {kind, prefixes[2], prefixes[3]})) do
    if text and not set then
      -- A text of another program does not hold.
      local own, groups = string.match(text, '^([^\t]*)\t?(.*)$')
      terms = terms_of(groups)
      set, bounds = string.match(terms and own or '', '^(%d+) (%d+ %d+ %d+ %d+) ')
      rule, place = text, i
    end
  end
  if not set then
    return
  end
  local gap, burst, most = bounds_of(bounds)
  local share = (ledgers > 1 or place > 1) and {'0', '0', set} or {'', '', ''}
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
