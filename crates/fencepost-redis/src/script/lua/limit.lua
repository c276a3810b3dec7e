-- Reads the limit of the lock's permits, once in a call: see permits.rs. It counts instead of the claim's own number. Zero: there is none.
if lock.limit == nil then
  local kept
  if string.find(lock.key, '^[^{]*{[^}]+}') then
    kept = redis.call('HGET', lock.key .. '\1permits', 'limit')
  elseif not string.find(lock.key, '[{}]') then
    kept = redis.call('HGET', string.sub(inbox, 1, -2) .. '\1permits:{' .. lock.key .. '}', 'limit')
  end
  lock.limit = tonumber(kept or 0)
end
if lock.limit > 0 then claim.of = lock.limit end
