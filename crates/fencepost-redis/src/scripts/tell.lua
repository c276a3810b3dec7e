-- Tells the oldest of the refused, in KEYS[2], as many as fit, that the lock may be free. They are taken out: who is refused again,
-- is written down again. Whose process no message reaches is passed over. The next one is told to ask a little later, in case that
-- the first do not: a process that was stopped takes messages, too.
local told, most = 0, 100
while told < 1 and most > 0 do
  local oldest = redis.call('ZPOPMIN', KEYS[2])[1]
  if not oldest then break end
  local mode, n, of = struct.unpack('>BI4I4', string.sub(oldest, 25, 33))
  local heard = redis.pcall('PUBLISH', inbox .. string.sub(oldest, 34, 49), 'H' .. string.sub(oldest, 1, 16))
  if type(heard) == 'number' and heard > 0 then
    told = told + (mode == 1 and 1 or mode == 3 and n / of or 0)
  end
  most = most - 1
end
local spare = told > 0 and redis.call('ZRANGE', KEYS[2], 0, 0)[1]
if spare then redis.pcall('PUBLISH', inbox .. string.sub(spare, 34, 49), 'S' .. string.sub(spare, 1, 16)) end
