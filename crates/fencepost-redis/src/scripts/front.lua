-- Asks for the lock, or asks again: here what happens nearly always, in enter.lua the rest.
--
-- KEYS[1] the lock. ARGV: 1 lease in µs, a double, claim id (16 bytes) and what follows the dynamic part of REC: mode, permits,
-- process (16 hex digits), text; 2 how, see head.lua, with 1 to join the line.
-- Answers a token: holds; four doubles (how many are ahead, ms until another look is worth it or -1, number, last token): waits;
-- {3, ahead}: busy, nothing left behind; {4}: gone. Repeating it changes nothing but the lease and the place's time.
local who, name = ARGV[1], KEYS[1]
local s, mine, its, got
local call, read = redis.call, struct.unpack
local how, retention, ttl = read('>Bdd', ARGV[2])
if how >= 4 then
  how, mine, its = how - 4, 'c' .. string.sub(who, 9, 24), 'p' .. string.sub(who, 34, 49)
  got = call('HMGET', name, 's', mine, its)
  s = got[1]
else
  s = call('HGET', name, 's')
  -- Nobody holds it, nobody waits, and this one wants it for itself.
  if not s or #s == 33 then
    -- include grant
  end
end
