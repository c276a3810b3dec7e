-- Grants a lock that is idle, of which `s` is the summary, to a claim that wants it exclusively: `who`, `ttl` and `retention` as in
-- scripts/front.lua. Each number that is packed or read costs a tenth of a call: what stays the same, or stands there twice, is copied.
local last, exp, kept = 0, 0, nil
if s then
  last, exp = read('>dd', s, 10)
end
if wish > last then last = wish elseif last < now then last = now else last = last + 1 end
local at, deadline = struct.pack('>d', now), now + ttl
local token = last == now and at or struct.pack('>d', last)
-- The key lives as long as anything in it may, and `retention` more; moved seldom.
local need = (deadline > last and deadline or last) / 1000 + retention
if exp < need then
  exp = math.floor(need + retention / 2)
  kept = struct.pack('>dd', exp, s and read('>d', s, 26) or 1)
  call('HSET', name, 's', '\3' .. at .. token .. kept .. who)
  call('PEXPIREAT', name, exp)
else
  call('HSET', name, 's', '\3' .. at .. token .. string.sub(s, 18, 33) .. who)
end
return last
