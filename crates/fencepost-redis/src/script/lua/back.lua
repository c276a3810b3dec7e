-- As a node of a quorum: before lua/leave.lua, which becomes the function `leave`, and lua/left.lua.
--
-- KEYS[1] the lock. ARGV: 1 the claim's name, see head.lua; 2 what it was written down as, see refused.lua, if it may have been refused,
-- or nothing; 3 as in leave.lua. Answers as leave.lua, or 3: a grant whose time may have been over.
local own, name = ARGV[1], KEYS[1]
local got = redis.call('HMGET', name, 's', 'r')
local s = got[1]
-- The usual case where HDEL is not enough, see refused.lua: an exclusive holder leaves, and nobody was refused.
if s and string.byte(s) == 3 and not got[2] and not ARGV[3] then
  -- If its lease is over, that made no difference to anybody: its time is not read. To find a string costs half of what it takes to cut
  -- it out. A full server refuses.
  if string.find(s, own, 43, true) == 43 and redis.pcall('HSET', name, 's', string.sub(s, 1, 33)) == 0 then return 3 end
end
local entry, ARGV = ARGV[2] ~= '' and ARGV[2], { own, '', ARGV[3] }
