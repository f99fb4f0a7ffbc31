-- A kind is paused by the field `paused` of its hash `calls`: the start of the pause, Unix ms.
-- After a resume the field holds 0, which tells the kind from one that was never paused.
local function is_paused(since)
  return (tonumber(since or nil) or 0) > 0
end
