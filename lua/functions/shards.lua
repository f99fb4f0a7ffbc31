-- The shard of a job, and the name of the ledger of a shard: `shard_of` and `subject` of
-- src/shards.rs in Lua. The first call that needs the tables makes them, because the modules `bit`
-- and `string` are not available while a library is loaded; later calls use them again.

-- The CRC of each single byte.
local SUMS_32, SUMS_16 = {}, {}

local function make_sums()
  for byte = 0, 255 do
    local sum_32, sum_16 = byte, byte * 256
    for _ = 1, 8 do
      sum_32 = bit.bxor(bit.rshift(sum_32, 1), bit.band(sum_32, 1) * 0xEDB88320)
      sum_16 = bit.bxor(sum_16 * 2, sum_16 >= 0x8000 and 0x11021 or 0)
    end
    SUMS_32[byte], SUMS_16[byte] = sum_32, sum_16
  end
end

-- The CRC-32 of zip, gzip and PNG.
local function crc_32(text)
  local sum = -1
  for at = 1, #text do
    sum = bit.bxor(bit.rshift(sum, 8), SUMS_32[bit.band(bit.bxor(sum, string.byte(text, at)), 255)])
  end
  return bit.bnot(sum) % 2 ^ 32
end

-- Adds one byte to a CRC-16, the checksum by which a cluster chooses the slot of a key.
local function more_crc_16(sum, byte)
  return bit.bxor(sum % 256 * 256, SUMS_16[bit.bxor(math.floor(sum / 256), byte)])
end

local function crc_16(text)
  local sum = 0
  for at = 1, #text do
    sum = more_crc_16(sum, string.byte(text, at))
  end
  return sum
end

-- An id can begin with a hint, which ends at the first `~`; then only the hint counts.
local function shard_of(id, shards)
  if shards == 1 then
    return 0
  elseif not SUMS_32[0] then
    make_sums()
  end
  return crc_32(string.match(id, '^([^~]+)~') or id) % shards
end

-- How many names of ledgers are kept for later calls.
local MOST_SUBJECTS = 4096

local SUBJECTS, subjects = {}, 0

-- Finds the name of a ledger whose slot lies near the place of the shard: it tries one number after
-- the other.
local function find_subject(kind, shard)
  if not SUMS_16[0] then
    make_sums()
  end
  local best, part, rest = crc_16(kind .. '/0'), SLOTS / 2, shard
  while rest > 0 do
    best = best + rest % 2 * part
    part, rest = part / 2, math.floor(rest / 2)
  end
  local name = kind .. '/' .. shard .. '.'
  local before, sums, salt = crc_16(name), {}, -1
  repeat
    salt = salt + 1
    -- All digits but the last are a number that was tried before, so its checksum is known.
    local tens = math.floor(salt / 10)
    sums[salt] = more_crc_16(tens > 0 and sums[tens] or before, string.byte('0') + salt % 10)
    local apart = (sums[salt] - best) % SLOTS
  until math.min(apart, SLOTS - apart) <= TOLERANCE
  return name .. salt
end

local function subject_of(kind, shard)
  local plain = kind .. '/' .. shard
  if shard == 0 then
    return plain
  end
  local subject = SUBJECTS[plain]
  if not subject then
    if subjects == MOST_SUBJECTS then
      SUBJECTS, subjects = {}, 0
    end
    subject = find_subject(kind, shard)
    SUBJECTS[plain], subjects = subject, subjects + 1
  end
  return subject
end
