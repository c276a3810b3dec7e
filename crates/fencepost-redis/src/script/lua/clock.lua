-- The server's time in µs: TIME stands still while a script runs.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
-- What a quorum wants for a token, or 0; and is this a node of one?
local wish, voting = 0, false
