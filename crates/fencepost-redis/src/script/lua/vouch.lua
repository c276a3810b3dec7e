-- Vouches for a node of a quorum: it has lost nothing, or nobody holds anything.
-- KEYS[1] the marker, see stay_out.lua. ARGV: 1 the longest lease in ms. Reply: DONE.
-- include run
redis.call('HSET', KEYS[1], 'run', run, 'until', 0, 'ttl', ARGV[1])
return 'DONE'
