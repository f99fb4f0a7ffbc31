-- arm: adapts triggers to their jobs, if they live in another slot than the ledger.
--
-- KEYS  1… trigger  app:module:biz:id, one for each item
-- ARGV  1 marker, then for each item: when the job is due, Unix ms; empty where there is none
-- Reply {'ok', now µs, answers}; answers, separated by blanks:
--       armed     the trigger expires then, or is not there because that time has come
--       disarmed  no trigger of ours is there
--       …!        the name holds a foreign value: no trigger
-- Holds: the last call wins, even if the ledger has changed by then; the pacer of the ledger finds
--       wrong.

local FIXED, HEAD = 0, 1
local marker = ARGV[1]
local now, stamp = now_us()

local answers = {}
for i = 1, #KEYS - FIXED do
  local due = ARGV[HEAD + i]
  if due == '' then
    answers[i] = 'disarmed'
    disarm(KEYS[FIXED + i], marker)
  else
    answers[i] = 'armed'
    if not arm(KEYS[FIXED + i], marker, due, now) then
      answers[i] = answers[i] .. '!'
    end
  end
end
return {'ok', stamp, table.concat(answers, ' ')}
