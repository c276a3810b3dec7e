-- As a node of a quorum: before scripts/leave.lua, which becomes the function `leave`, and scripts/left.lua.
local mine = 'c' .. ARGV[1]
local got = redis.call('HMGET', key, 's', mine, 'r')
local s, rec, what = got[1], got[2], 0
if rec then what = string.byte(rec) end
-- What happens nearly always: an exclusive holder leaves, and nobody was refused.
if s and what > 1 and what < 5 and not got[3] and ARGV[2] == '0' and string.byte(rec, 42) == 1 then
  -- include summary
  if nw + nt == 0 and now >= seen and mind > now then
    local retention, move = tonumber(ARGV[3]), false
    -- The key of an idle lock stays for its last token alone.
    local rest = math.floor(math.max(now, last) / 1000) + retention
    if exp > rest + retention then exp, move = rest, true end
    redis.call('HDEL', key, mine)
    redis.call('HSET', key, 's', struct.pack(SUM, 1, x - 1, sh, ph, pn, 0, now, last, exp, tail, tail, 0, 0))
    if move then redis.call('PEXPIREAT', key, exp) end
    return 1
  end
end
