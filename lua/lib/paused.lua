-- A kind is paused by the field `paused` of its hash `calls`: since when, Unix ms. Once it was
-- resumed the field holds 0, which tells it from a kind that nobody ever paused.
local function is_paused(since)
  return (tonumber(since or nil) or 0) > 0
end
