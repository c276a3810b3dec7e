-- As a node of a quorum: behind scripts/leave.lua, which is the function `leave` here. A grant that ends is not handed on: the
-- oldest who were refused are told to ask.
--
-- KEYS[2] see refused.lua. ARGV beyond those of leave.lua: 4 what this claim was written down as, or nothing. Answers as leave.lua.
local left, inbox = leave(), string.sub(ARGV[2], 18)
-- One that is there no more was told to ask, and will not: so are others.
local passes = ARGV[4] ~= '' and redis.call('ZREM', KEYS[2], ARGV[4]) == 0
if left == 1 or left == 3 or passes then
  -- include tell
  if not spare then redis.call('HDEL', KEYS[1], 'r') end
end
return left
