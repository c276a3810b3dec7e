-- Reads locks as they stand, about SCAN fields at most: see head.lua. KEYS the locks. ARGV where to go on in each, at first 0.
-- Answers now in µs, then of each lock to which it came the cursor and some fields, or the error of a key that is no hash.
local answer, left = { now }, SCAN
for i = 1, #KEYS do
  local got = redis.pcall('HSCAN', KEYS[i], ARGV[i], 'COUNT', left)
  answer[i + 1] = got
  left = left - (got.err and 0 or #got[2] / 2)
  if left <= 0 or not got.err and got[1] ~= '0' then break end
end
return answer
