-- As a node of a quorum: before scripts/leave.lua, which becomes the function `leave`, and scripts/left.lua.
local got = redis.call('HMGET', KEYS[1], 's', 'r')
local s = got[1]
-- What happens nearly always: an exclusive holder leaves, and nobody was refused.
if not got[2] then
  -- include free
end
