local form = string.byte(s)
if form == 1 then
  _, x, sh, ph, pn, mind, seen, last, exp, head, tail, nw, nt = struct.unpack(SUM, s)
elseif form == 2 then
  _, last, exp, tail = struct.unpack(IDLE, s)
  head = tail
  if #s > 25 then
    x, lone = 1, s
    -- A renewal writes the time plus the lease.
    _, mind, _, _, seen = struct.unpack('>Bdddd', s, 26)
    seen = mind - seen
  end
else
  error('FENCEPOST layout ' .. tostring(form) .. ' of the lock is not known to this version')
end
