-- Grants a lock that is idle, of which `s` is the summary, to a claim that wants it exclusively: `who`, `ttl` and `retention` as in
-- lua/front.lua. Each number that is packed or read costs a tenth of a call: what stays the same, or stands there twice, is copied.
local last, exp, kept = 0, 0, nil
if s then
  last, exp = read('>dd', s, 10)
end
if wish > last then last = wish elseif last < now then last = now else last = last + 1 end
local at, deadline = struct.pack('>d', now), now + ttl
local token = last == now and at or struct.pack('>d', last)
-- The key lives as long as anything in it may, and `retention` more; moved seldom.
local need = (deadline > last and deadline or last) / 1000 + retention
local move = exp < need
if move then
  exp = math.floor(need + retention / 2)
  kept = struct.pack('>dd', exp, s and read('>d', s, 26) or 1)
else
  kept = string.sub(s, 18, 33)
end
if voting then
  -- Somebody may have been refused.
  call('HSET', name, 's', '\3' .. at .. token .. kept .. who)
else
  call('HSET', name, 's', '\4' .. at .. token .. kept .. who, 'l' .. string.sub(who, 18, 33), '')
end
if move then call('PEXPIREAT', name, exp) end
return voting and -last or last
