-- Asks for the lock, behind lua/front.lua.
local proc, more = string.sub(who, 45, 60), false
if not got then
  mine, its = 'c' .. string.sub(who, 18, 33), 'p' .. proc
  got = redis.call('HMGET', key, 's', mine, its)
end
local rec, p = got[2], got[3]
if s then
  -- include summary
end
-- Beside an exclusive holder no claim fits. Otherwise a waiter may have been passed over, or dead claims stand in the way.
local clear, late = nw == 0, now < seen or mind > 0 and mind <= now
if rec or late or nt > 0 or not clear and x == 0 or lone and (how == 1 or string.sub(lone, 51, 66) == string.sub(who, 18, 33)) then
  local before = not voting and lone
  -- include line
  if purge() then
    got = redis.call('HMGET', key, mine, its)
    rec, p = got[1], got[2]
    if before and x > 0 and not rec then
      -- It ends by a script from now on, and need not find that out. Where a message is not allowed it does.
      redis.pcall('PUBLISH', string.sub(key, 1, string.byte(who, 35)) .. '@' .. string.sub(before, 78, 93), 'L' .. string.sub(before, 51, 66))
    end
  end
  if rec then
    local state, deadline, tok, since, seq
    state, deadline, tok, since, _, seq = record(rec)
    if state == 1 then
      -- Written first, so that `tend` finds the process alive.
      local count = 0
      if p then _, count = struct.unpack(PROC, p) end
      touch()
      redis.call('HSET', key, its, struct.pack(PROC, now + LIVE, count))
      if x == 0 then _, more = tend(string.sub(key, 1, string.byte(who, 35)) .. '@', string.byte(who, 34) == 1) end
      expire(now + LIVE, retention)
      save()
      state, _, tok, since, _, seq = struct.unpack(REC, redis.call('HGET', key, mine))
      if state == 1 then
        local again = mind > now and not more and math.ceil((mind - now) / 1000) or (more or mind > 0) and 0 or -1
        return struct.pack('>dddd', x + sh + ph + math.max(nw - 1, 0), again, seq, last)
      end
    else
      -- An expired one would have been purged, unless the lock is too large for one call.
      if state == 4 or state == 5 or deadline <= now then return { 4 } end
      touch()
      if deadline > now + ttl then
        -- As it was, but written: replicas are waited for behind that.
        set(mine, rec)
        save()
        return -tok
      end
    end
    due(now + ttl)
    set(mine, struct.pack(DYN, 3, now + ttl, tok, since, ttl, seq) .. string.sub(rec, 42))
    expire(now + ttl, retention)
    save()
    return -tok
  end
  clear = nw == 0
  if nw > 0 and x == 0 then
    clear, more = tend(string.sub(key, 1, string.byte(who, 35)) .. '@', string.byte(who, 34) == 1)
    if dirty or #dels > 0 then save() end
    p = redis.call('HGET', key, its)
  end
end

local mode, n, of = struct.unpack('>BI4I4', who, 36)
local deadline
if clear and (mode == 1 and x + sh + ph == 0 or mode == 2 and x + ph == 0 or mode == 3 and x + sh == 0 and pn + n <= of) then
  if mode == 1 then x = 1 elseif mode == 2 then sh = sh + 1 else ph, pn = ph + 1, pn + n end
  last = wish > last and wish or math.max(last + 1, now)
  deadline = now + ttl
  if mind == 0 or deadline < mind then mind = deadline end
  if found == 0 or deadline < found then found = deadline end
elseif how == 0 then
  return { 3, x + sh + ph + nw, cursor and 0 }
end
local need, move = math.floor(math.max(last, deadline or now + LIVE) / 1000) + retention, false
if exp < need then
  exp, move = need + math.floor(retention / 2), true
end
local answer, rest = nil, cursor and struct.pack('>d', found) .. cursor or ''
if deadline then
  redis.call('HSET', key, 's', struct.pack(SUM, 1, x, sh, ph, pn, mind, now, last, exp, head, tail, nw, nt) .. rest,
    mine, struct.pack(DYN, 3, deadline, last, now, ttl, 0) .. string.sub(who, 36))
  answer = -last
else
  local seq, count = tail, 0
  if p then _, count = struct.unpack(PROC, p) end
  tail, nw = tail + 1, nw + 1
  redis.call('HSET', key, 's', struct.pack(SUM, 1, x, sh, ph, pn, mind, now, last, exp, head, tail, nw, nt) .. rest,
    'w' .. seq, string.sub(who, 18, 33) .. proc, its, struct.pack(PROC, now + LIVE, count + 1),
    mine, struct.pack(DYN, 1, 0, 0, now, ttl, seq) .. string.sub(who, 36))
  local again = mind > now and not more and math.ceil((mind - now) / 1000) or (more or mind > 0) and 0 or -1
  answer = struct.pack('>dddd', x + sh + ph + nw - 1, again, seq, last)
end
if move then redis.call('PEXPIREAT', key, exp) end
return answer
