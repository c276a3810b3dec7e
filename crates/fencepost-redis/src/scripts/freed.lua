-- As a node of a quorum, after an eviction that has freed the lock. KEYS[1] the lock, KEYS[2] see refused.lua. ARGV: 1 inbox prefix.
local inbox = ARGV[1]
-- include tell
return 1
