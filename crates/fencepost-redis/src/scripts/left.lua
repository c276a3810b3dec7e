-- As a node of a quorum: behind scripts/leave.lua, which is the function `leave` here. A grant that ends is not handed on: the
-- oldest who were refused are told to ask.
--
-- KEYS[2] see refused.lua. ARGV beyond those of leave.lua: 7 what this claim was written down as, or nothing. Answers as leave.lua.
local left, inbox = leave(), ARGV[4]
-- One that is there no more was told to ask, and will not: so are others.
local passes = ARGV[7] ~= '' and redis.call('ZREM', KEYS[2], ARGV[7]) == 0
if left == 1 or passes then
  -- include tell
  if not spare and redis.call('EXISTS', KEYS[2]) == 0 then redis.call('HDEL', key, 'r') end
end
return left
