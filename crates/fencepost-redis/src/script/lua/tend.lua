-- Goes on where a call had more to do than one call may. KEYS[1] the lock. ARGV: 1 inbox prefix, 2 "1" in a cluster.
-- Answers 1 if there is still more.
-- include line
local s = redis.call('HGET', KEYS[1], 's')
if not s then return 0 end
open(KEYS[1], s)
local scanned, more = purge(), false
if nw > 0 and x == 0 then _, more = tend(ARGV[1], ARGV[2] == '1') end
if scanned or dirty or #dels > 0 then save() end
return (more or mind > 0 and mind <= now) and 1 or 0
