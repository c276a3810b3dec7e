-- Takes up a grant by its id: extends it, and says whose it is from now on. Detaching gives it to nobody.
--
-- KEYS[1] the lock. ARGV: 1 claim id, 2 process or sixteen zeros for nobody, 3 lease in µs, 4 retention in ms, 5 mode as in its record.
-- Answers the token, or {4}: gone.
-- include line
local mine, ttl = 'c' .. ARGV[1], tonumber(ARGV[3])
local got = redis.call('HMGET', KEYS[1], 's', mine)
if not got[1] then return { 4 } end
open(KEYS[1], got[1])
if purge() then got[2] = redis.call('HGET', key, mine) end
if not got[2] or string.sub(got[2], 42, 50) ~= ARGV[5] then return { 4 } end
local state, deadline, tok, since, _, seq = record(got[2])
if state ~= 2 and state ~= 3 or deadline <= now then return { 4 } end
deadline = math.max(state == 2 and 0 or deadline, now + ttl)
due(deadline)
local static = string.sub(got[2], 42, 50) .. ARGV[2] .. string.sub(got[2], 67)
set(mine, struct.pack(DYN, 3, deadline, tok, since, math.max(ttl, deadline - now), seq) .. static)
expire(deadline, tonumber(ARGV[4]))
touch()
save()
return tok
