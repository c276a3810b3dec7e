local form = string.byte(s)
if form == 1 then
  _, x, sh, ph, pn, mind, seen, last, exp, head, tail, nw, nt = struct.unpack(SUM, s)
  if #s > 74 then found, cursor = struct.unpack('>d', s, 75), string.sub(s, 83) end
elseif form == 3 or form == 4 then
  _, seen, last, exp, tail = struct.unpack(IDLE, s)
  head = tail
  if #s > 33 and (form == 3 or redis.call('HGET', key, 'l' .. string.sub(s, 51, 66))) then
    x, lone, mind = 1, s, seen + struct.unpack('>d', s, 35)
  end
else
  error('FENCEPOST layout ' .. tostring(form) .. ' of the lock is not known to this version')
end
