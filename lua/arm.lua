-- arm: sets or deletes triggers that are in other slots than their ledger.
--
-- KEYS  1… trigger  app:module:biz:id, one for each item
-- ARGV  1 marker, then for each item: the due time of the job, Unix ms; empty to delete the trigger
-- Reply {'ok', now µs, answers}; answers, separated by blanks:
--       armed     the trigger expires at the due time, or is absent because that time has come
--       disarmed  the job has no trigger of ours
--       …!        no trigger: its name holds a foreign value
-- Holds: the last call wins, even if the ledger has changed since; the pacer notices a wrong
--       trigger.

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
