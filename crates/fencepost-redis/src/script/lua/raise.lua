-- Gives a grant a greater token. KEYS[1] the lock. ARGV: 1 claim id (16 bytes), 2 the token, 3 retention in ms, 4 "1": the quorum has
-- given the claim that token before, and this node has voted for it again, so a lesser one than it has will do if it holds alone.
-- Answers 1, or 0: the claim holds it no more, or a token as great was given to another.
-- include line
local s = redis.call('HGET', KEYS[1], 's')
if not s then return 0 end
open(KEYS[1], s)
purge()
local rec = redis.call('HGET', key, 'c' .. ARGV[1])
if not rec then return 0 end
local state, deadline, tok, since, ttl, seq = record(rec)
local to = tonumber(ARGV[2])
if state ~= 3 or deadline <= now then return 0 end
if tok == to then return 1 end
if to <= last and (ARGV[4] ~= '1' or x + sh + ph > 1) then return 0 end
last = math.max(last, to)
set('c' .. ARGV[1], struct.pack(DYN, state, deadline, to, since, ttl, seq) .. string.sub(rec, 42))
expire(deadline, tonumber(ARGV[3]))
touch()
save()
return 1
