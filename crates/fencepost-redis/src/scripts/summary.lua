local version
version, x, sh, ph, pn, mind, seen, last, exp, head, tail, nw, nt = struct.unpack(SUM, s)
if version ~= 1 then error('FENCEPOST layout ' .. version .. ' of the lock is not known to this version') end
