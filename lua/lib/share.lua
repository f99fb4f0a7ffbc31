-- Several ledgers may share a limit: those of a kind with shards, or of all kinds with a prefix.
-- Each has a part of it, and workers move parts to where jobs wait. Behind its line end, the field
-- `limit` of `calls` has `~ epoch by rule gap units leases of_units of_leases bound since owed`:
--
--   epoch      by  the last call that looked at the share or changed it: a number, and who made it
--   rule       when the limit was set, Unix ms: all shares of one limit have the same time
--   gap        the µs in which one unit allows one start; 0 without a rate
--   units      the units of the whole limit: as many as its burst has jobs
--   leases     the leases of the whole limit; 0 for any number
--   of_units   of_leases  the share of this ledger
--   bound      of how many leases this ledger makes use: its share, or more of them until the
--              leases above it have ended
--   since      when the ledger got its share, or lost it, Unix ms
--   owed       the millionths of a start that were used of the units which the last look has removed
--
-- A unit is a rate of one start in `gap` µs with a burst of one, and u units are u times as much.
-- Together the ledgers have no more than all units, whoever has them. A unit that moves takes along
-- what has been used of it: the sum of the starts that are free in all ledgers stays the same, and
-- no clock is compared with another one.

local function read_share(text)
  local epoch, by, rule, gap, units, leases, of_units, of_leases, bound, since, owed =
    string.match(text, '^~ (%d+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  return epoch and {
    epoch = tonumber(epoch),
    by = by,
    rule = rule,
    gap = tonumber(gap),
    units = tonumber(units),
    leases = tonumber(leases),
    of_units = tonumber(of_units),
    of_leases = tonumber(of_leases),
    bound = tonumber(bound),
    since = tonumber(since),
    owed = tonumber(owed),
  }
end

-- Whether the ledger may start jobs.
local function has_share(share)
  return (share.gap == 0 or share.of_units > 0) and (share.leases == 0 or share.of_leases > 0)
end

-- Stores the share, and limits the ledger to it.
local function write_share(limit, share)
  limit.gap = share.gap > 0 and math.ceil(share.gap / math.max(1, share.of_units)) or 0
  limit.burst = has_share(share) and math.max(1, share.of_units) or 0
  limit.most = share.leases > 0 and math.max(1, share.of_leases) or 0
  limit.share = table.concat({'~', int(share.epoch), share.by, share.rule, int(share.gap),
    int(share.units), int(share.leases), int(share.of_units), int(share.of_leases),
    int(share.bound), int(share.since), int(share.owed)}, ' ')
end

-- How many starts of its units the ledger has used, a fraction. If the clock was set back, all. A
-- ledger without units has used what a look has to pass on to others.
local function starts_used(limit, share, now)
  if limit.gap == 0 then
    return 0
  end
  local most = share.of_units > 0 and share.of_units or share.units
  return math.max(0, math.min((limit.full - now) / limit.gap, most))
end
