-- Tells the oldest refused claims that the lock may be free, as many as fit beside the holders. They are deleted from the sorted set; a
-- claim that is refused again is added again. A claim whose process no message reaches is passed over. `lock` counts those who are told as
-- holders, and must not be saved after this. `spare`: one more, told to ask a little later. The first may not ask: a stopped process gets
-- messages, too.
local refused, at, spare = 'redlock:' .. key, 0, nil
for _ = 1, 100 do
  local entry = (lock.holders == 0 or lock.mode ~= EXCLUSIVE) and at < 16 and redis.call('ZRANGE', refused, at, at)[1]
  if not entry then break end
  local _, told, terms = struct.unpack(REFUSED, entry)
  local mode, permits, of, process = struct.unpack(TERMS, entry, terms)
  local asks = { mode = mode, permits = permits, of = of }
  if fits(lock, asks) then
    redis.call('ZREM', refused, entry)
    local reached = redis.pcall('PUBLISH', inbox .. process, 'H' .. told)
    if type(reached) == 'number' and reached > 0 then count(lock, asks, 1) end
  else
    at = at + 1
  end
end
spare = redis.call('ZRANGE', refused, 0, 0)[1]
if spare then
  local _, told, terms = struct.unpack(REFUSED, spare)
  local _, _, _, process = struct.unpack(TERMS, spare, terms)
  redis.pcall('PUBLISH', inbox .. process, 'S' .. told)
end
