-- As a node of a quorum: behind lua/leave.lua, which is the function `leave` here. A grant that ends is not handed on: the
-- oldest who were refused are told to ask.
local left, inbox, refused = leave(), string.sub(name, 1, string.byte(own, 26)) .. '@', 'redlock:' .. name
-- One that is there no more was told to ask, and will not: so are others.
local passes = entry and redis.call('ZREM', refused, entry) == 0
if left % 2 == 1 or passes then
  -- include tell
  if not spare then redis.call('HDEL', KEYS[1], 'r') end
end
return left
