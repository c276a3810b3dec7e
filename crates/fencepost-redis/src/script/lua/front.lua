-- Asks for the lock, or asks again: here what happens nearly always, in enter.lua the rest.
--
-- KEYS[1] the lock. ARGV: 1 all in one, since each argument costs more than to cut one up: a byte, of which 1 says that the claim joins
-- the line, and 4 that this is likely to be no grant of an idle lock, because this client waits in its line already or does not want it
-- for itself alone; the lease in µs, a double; the claim's name, see head.lua; what follows the dynamic part of REC: mode, permits,
-- process (16 hex digits), text.
-- Answers a token: holds, and it is negative unless the grant may end by HDEL, see head.lua; four doubles (how many are ahead, ms until
-- another look is worth it or -1, number, last token): waits; {3, ahead}: busy, nothing left behind, and behind it 0 if
-- a scan for the dead is under way; {4}: gone. Repeating it changes
-- nothing but the lease and the place's time.
local who, name = ARGV[1], KEYS[1]
local s, mine, its, got
local call, read = redis.call, struct.unpack
local how, ttl, retention = read('>Bdd', who)
if how >= 4 then
  how, mine, its = how - 4, 'c' .. string.sub(who, 18, 33), 'p' .. string.sub(who, 45, 60)
  got = call('HMGET', name, 's', mine, its)
  s = got[1]
else
  s = call('HGET', name, 's')
  -- Nobody holds it, nobody waits, and this one wants it for itself.
  if not s or #s == 33 or not voting and string.byte(s) == 4 and call('HLEN', name) == 1 then
    -- include grant
  end
end
