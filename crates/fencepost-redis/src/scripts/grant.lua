-- Grants a lock that is idle, of which `s` is the summary, to a claim that wants it exclusively: `who`, `ttl` and `retention` as in
-- scripts/front.lua.
local _, last, exp, tail = 2, 0, 0, 1
if s then _, last, exp, tail = struct.unpack('>Bddd', s) end
if wish > last then last = wish elseif last < now then last = now else last = last + 1 end
local deadline = now + ttl
-- The key lives as long as anything in it may, and `retention` more; moved seldom.
local need, kept = (deadline > last and deadline or last) / 1000 + retention, exp
if exp < need then exp = math.floor(need + retention / 2) end
redis.call('HSET', KEYS[1], 's', struct.pack('>BdddBddddd', 2, last, exp, tail, 3, deadline, last, now, ttl, 0) .. who)
if exp > kept then redis.call('PEXPIREAT', KEYS[1], exp) end
return last
