-- Reads whom a node of a quorum has refused. KEYS the sorted sets of several locks, see field r in
-- layout.lua. ARGV: 1 inbox prefix.
-- Reply: a list: LIST, now in µs, then for each key a list of the refused whose processes are there, see REFUSED in layout.lua.
-- include layout
local list = { 'LIST', now }
for i, key in ipairs(KEYS) do
  local there = {}
  for _, entry in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    local _, _, terms = struct.unpack(REFUSED, entry)
    local _, _, _, process = struct.unpack(TERMS, entry, terms)
    local _, subscribers = unpack(redis.call('PUBSUB', 'NUMSUB', ARGV[1] .. process))
    if subscribers > 0 then there[#there + 1] = entry end
  end
  list[i + 2] = there
end
return list
