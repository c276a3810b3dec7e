-- Tells the oldest of those in `refused`, see refused.lua, that the lock may be free: those who fit beside what is held. They are taken out:
-- a claim that is refused again is written down again. A claim whose process no message reaches is passed over. The next one is told to ask a
-- little later, in case that the first do not: a process that was stopped takes messages, too.
local s, at, most = redis.call('HGET', KEYS[1], 's'), 0, 100
local x, sh, ph, pn, _ = 0, 0, 0, 0, nil
if s and string.byte(s) == 1 then _, x, sh, ph, pn = struct.unpack('>BBI4I4d', s) elseif s and #s > 33 then
  if string.byte(s) == 3 or redis.call('HGET', KEYS[1], 'l' .. string.sub(s, 51, 66)) then x = 1 end
end
while x == 0 and at < 16 and most > 0 do
  local one = redis.call('ZRANGE', refused, at, at)[1]
  if not one then break end
  local mode, n, of = struct.unpack('>BI4I4', string.sub(one, 25, 33))
  if mode == 1 and sh + ph > 0 or mode == 2 and ph > 0 or mode == 3 and (sh > 0 or pn + n > of) then
    at = at + 1
  else
    redis.call('ZREM', refused, one)
    local heard = redis.pcall('PUBLISH', inbox .. string.sub(one, 34, 49), 'H' .. string.sub(one, 9, 24))
    if type(heard) == 'number' and heard > 0 then
      if mode == 1 then x = 1 elseif mode == 2 then sh = sh + 1 else ph, pn = ph + 1, pn + n end
    end
  end
  most = most - 1
end
local spare = redis.call('ZRANGE', refused, 0, 0)[1]
if spare then redis.pcall('PUBLISH', inbox .. string.sub(spare, 34, 49), 'S' .. string.sub(spare, 9, 24)) end
