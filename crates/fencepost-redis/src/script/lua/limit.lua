-- Reads the limit of the lock's permits, once in a call: see permits.rs. It counts instead of the claim's own number. Zero: there is none.
-- -1: it cannot be read, so no claim fits now. The script has written already, so nothing may raise an error here.
if lock.limit == nil then
  -- In a cluster the two keys may be in different slots.
  local kept = not cluster and redis.pcall('HGET', string.sub(inbox, 1, -2) .. '\1permits:' .. lock.key, 'limit')
  lock.limit = 0
  if kept then
    lock.limit = type(kept) == 'string' and string.find(kept, '^%d+$') and tonumber(kept) or -1
    if lock.limit < 1 or lock.limit > 4294967295 then lock.limit = -1 end
  end
end
if lock.limit ~= 0 then claim.of = lock.limit end
