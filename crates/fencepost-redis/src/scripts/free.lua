-- Ends a grant that nobody has asked for since it was taken: if its lease is over, that made no difference to anybody. The summary is
-- `s`, the claim's name `own`, see head.lua; a claim that leaves a tombstone does not come here. To find a string costs half of what it takes to cut it out.
-- A full server refuses.
if s and string.find(s, own, 43, true) == 43 and redis.pcall('HSET', name, 's', string.sub(s, 1, 33)) == 0 then
  return 3
end
