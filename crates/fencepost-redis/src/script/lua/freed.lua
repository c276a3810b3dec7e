-- As a node of a quorum, after an eviction that has freed the lock. KEYS[1] the lock. ARGV: 1 inbox prefix.
local inbox, refused = ARGV[1], 'redlock:' .. KEYS[1]
-- include tell
return 1
