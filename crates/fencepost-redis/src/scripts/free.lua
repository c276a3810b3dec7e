-- Ends a grant that nobody has asked for since it was taken: if its lease is over, that made no difference to anybody. The summary is
-- `s`, the claim `id`, and `flags` the first byte of how, see scripts/head.lua. A full server refuses.
if s and flags % 2 == 0 and string.sub(s, 67, 82) == id
  and redis.pcall('HSET', KEYS[1], 's', string.sub(s, 1, 25)) == 0 then
  return 3
end
