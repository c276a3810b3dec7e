-- As a node of a quorum: before scripts/leave.lua, which becomes the function `leave`, and scripts/left.lua.
local got = redis.call('HMGET', KEYS[1], 's', 'r')
local s = got[1]
-- What happens nearly always: an exclusive holder leaves, and nobody was refused. As in scripts/leave.lua.
if s and not got[2] and string.sub(s, 67, 82) == ARGV[1] and string.byte(s) == 2 and string.byte(ARGV[2]) % 2 == 0
  and redis.pcall('HSET', KEYS[1], 's', string.sub(s, 1, 25)) == 0 then
  return 3
end
