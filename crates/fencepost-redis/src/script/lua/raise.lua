-- Gives a grant of a node of a quorum a greater token.
-- KEYS[1] the lock. ARGV: 1 the claim's id; 2 the token; 3 retention in ms; 4 "1": the quorum gave the claim this token before, and this
-- node has voted for it again. Then the token may be smaller than the lock's last one, if nobody else holds the lock.
-- Reply: DONE. NONE: the claim holds it no more, or another claim was given a token as great.
-- include layout
local summary = redis.call('HGET', key, 's')
-- include idle, open, change, clear
local field, token, retention = 'c' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local record = redis.call('HGET', key, field)
local claim = record and unpack_claim(record)
if not claim or claim.state ~= HOLDS or claim.deadline <= now then return 'NONE' end
if claim.token == token then return 'DONE' end
if token <= lock.token and (ARGV[4] ~= '1' or lock.holders > 1) then return 'NONE' end
claim.token, lock.token = token, math.max(lock.token, token)
set_claim(field, claim)
expire(lock, claim.deadline, retention)
save(lock, true)
return 'DONE'
