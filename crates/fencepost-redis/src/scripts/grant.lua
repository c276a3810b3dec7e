-- Grants a lock that is idle to a claim that wants it exclusively: ARGV as in scripts/enter.lua, `retention` and `ttl` from there.
if s then _, last, exp, tail = struct.unpack(IDLE, s) end
last = wish > last and wish or math.max(last + 1, now)
local deadline = now + ttl
-- The key lives as long as anything in it may, and `retention` more; moved seldom.
local need, move = math.floor(math.max(last, deadline) / 1000) + retention, false
if exp < need then
  exp, move = need + math.floor(retention / 2), true
end
local held = struct.pack('>BdddBddddd', 2, last, exp, tail, 3, deadline, last, now, ttl, 0)
redis.call('HSET', key, 's', held .. ARGV[1] .. ARGV[3])
if move then redis.call('PEXPIREAT', key, exp) end
