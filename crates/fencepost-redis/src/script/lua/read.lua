-- Reads locks as they are, about SCAN fields at most. KEYS the locks. ARGV where to go on in each, at first 0.
-- Reply: a list: LIST, now in µs, then of each lock that was read the cursor and some fields, or the error of a key that is no hash.
-- include layout
local list, left = { 'LIST', now }, SCAN
for i, key in ipairs(KEYS) do
  local got = redis.pcall('HSCAN', key, ARGV[i], 'COUNT', left)
  local cursor, fields = unpack(got)
  list[i + 2], left = got, left - #(fields or {}) / 2
  if left <= 0 or cursor and cursor ~= '0' then break end
end
return list
