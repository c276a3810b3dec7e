-- The parts of the script follow one another: this file, free.lua, lock.lua, queue.lua, quorum.lua, records.lua.
-- Each call runs the text from its beginning, and makes each function that it passes, which costs the server more than most of their work.
-- So the answer to a request is no function but a block that returns, and functions which few requests need are behind the blocks of others.

-- The request that this call answers, and the time of the call.
local request, clock = ARGV[1], redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

