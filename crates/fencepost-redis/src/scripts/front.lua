-- Asks for the lock, or asks again: here what happens nearly always, in enter.lua the rest.
--
-- KEYS[1] the lock. ARGV: 1 claim id (16 bytes) and what follows the dynamic part of REC: mode, permits, process (16 hex digits),
-- text; 2 how, see head.lua, with 1 to join the line.
-- Answers a token: holds; four doubles (how many are ahead, ms until another look is worth it or -1, number, last token): waits;
-- {3, ahead}: busy, nothing left behind; {4}: gone. Repeating it changes nothing but the lease and the place's time.
local who = ARGV[1]
local s, mine, its, got
local how, retention, ttl = struct.unpack('>Bdd', ARGV[2])
if how >= 4 then
  how, mine, its = how - 4, 'c' .. string.sub(who, 1, 16), 'p' .. string.sub(who, 26, 41)
  got = redis.call('HMGET', KEYS[1], 's', mine, its)
  s = got[1]
else
  s = redis.call('HGET', KEYS[1], 's')
end
-- Nobody holds it, nobody waits, and this one wants it for itself.
if (not s or #s == 25) and string.byte(who, 17) == 1 then
  -- include grant
end
