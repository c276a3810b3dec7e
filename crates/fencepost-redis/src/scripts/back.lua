-- As a node of a quorum: before scripts/leave.lua, which becomes the function `leave`, and scripts/left.lua.
--
-- KEYS[1] the lock. ARGV: 1 the claim's id, then how, as in leave.lua: what each argument costs is more than to cut one up; 2, if it
-- may have been refused, what it was written down as then, see refused.lua. Answers as leave.lua.
local name = KEYS[1]
local id = string.sub(ARGV[1], 1, 16)
local got = redis.call('HMGET', name, 's', 'r')
local s = got[1]
-- What happens nearly always: an exclusive holder leaves, and nobody was refused.
if not got[2] and string.byte(ARGV[1], 17) % 2 == 0 then
  -- include free
end
local entry, ARGV = ARGV[2], { id, string.sub(ARGV[1], 17), '' }
