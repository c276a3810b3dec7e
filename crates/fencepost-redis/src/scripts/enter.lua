-- Asks for the lock, or asks again.
--
-- KEYS[1] the lock. ARGV: 1 claim id (16 bytes), 2 how, see head.lua, with 1 to join the line, 3 what follows the dynamic part of
-- REC: mode, permits, process (16 hex digits), text.
-- Answers a token: holds; four doubles (how many are ahead, ms until another look is worth it or -1, number, last token): waits;
-- {3, ahead}: busy, nothing left behind; {4}: gone. Repeating it changes nothing but the lease and the place's time.
local s, mine, its, got
local how, retention, ttl = struct.unpack('>Bdd', ARGV[2])
if how >= 4 then
  how, mine, its = how - 4, 'c' .. ARGV[1], 'p' .. string.sub(ARGV[3], 10, 25)
  got = redis.call('HMGET', key, 's', mine, its)
  s = got[1]
else
  s = redis.call('HGET', key, 's')
end
-- Nobody holds it, nobody waits, and this one wants it for itself.
if (not s or #s == 25) and string.byte(ARGV[3]) == 1 then
  -- include grant
  return last
end

local proc, more = string.sub(ARGV[3], 10, 25), false
if not got then
  mine, its = 'c' .. ARGV[1], 'p' .. proc
  got = redis.call('HMGET', key, 's', mine, its)
end
local rec, p = got[2], got[3]
if s then
  -- include summary
end
-- Beside an exclusive holder nobody fits; else somebody may have been passed over, or the dead stand in the way.
local clear, late = nw == 0, now < seen or mind > 0 and mind <= now
if rec or late or not clear and x == 0 or lone and (how % 2 == 1 or string.sub(lone, 67, 82) == ARGV[1]) then
  -- include line
  if purge() then
    got = redis.call('HMGET', key, mine, its)
    rec, p = got[1], got[2]
  end
  if rec then
    local state, deadline, tok, since, seq
    state, deadline, tok, since, _, seq = struct.unpack(REC, rec)
    if state == 1 then
      -- Written first, so that `tend` finds the process alive.
      local count = 0
      if p then _, count = struct.unpack(PROC, p) end
      touch()
      redis.call('HSET', key, its, struct.pack(PROC, now + LIVE, count))
      if x == 0 then _, more = tend(string.sub(ARGV[2], 18), how >= 2) end
      expire(now + LIVE, retention)
      save()
      state, _, tok, since, _, seq = struct.unpack(REC, redis.call('HGET', key, mine))
      if state == 1 then
        local again = mind > now and not more and math.ceil((mind - now) / 1000) or (more or mind > 0) and 0 or -1
        return struct.pack('>dddd', x + sh + ph + math.max(nw - 1, 0), again, seq, last)
      end
    else
      -- An expired one would have been purged, unless the dead were too many for one call.
      if state == 4 or state == 5 or deadline <= now then return { 4 } end
      if deadline > now + ttl then return tok end
      touch()
    end
    due(now + ttl)
    set(mine, struct.pack(DYN, 3, now + ttl, tok, since, ttl, seq) .. string.sub(rec, 42))
    expire(now + ttl, retention)
    save()
    return tok
  end
  clear = nw == 0
  if nw > 0 and x == 0 then
    clear, more = tend(string.sub(ARGV[2], 18), how >= 2)
    if dirty or #dels > 0 then save() end
    p = redis.call('HGET', key, its)
  end
end

local mode, n, of = struct.unpack('>BI4I4', ARGV[3])
local deadline
if clear and (mode == 1 and x + sh + ph == 0 or mode == 2 and x + ph == 0 or mode == 3 and x + sh == 0 and pn + n <= of) then
  if mode == 1 then x = 1 elseif mode == 2 then sh = sh + 1 else ph, pn = ph + 1, pn + n end
  last = wish > last and wish or math.max(last + 1, now)
  deadline = now + ttl
  if mind == 0 or deadline < mind then mind = deadline end
elseif how % 2 == 0 then
  return { 3, x + sh + ph + nw }
end
local need, move = math.floor(math.max(last, deadline or now + LIVE) / 1000) + retention, false
if exp < need then
  exp, move = need + math.floor(retention / 2), true
end
local answer
if deadline then
  redis.call('HSET', key, 's', struct.pack(SUM, 1, x, sh, ph, pn, mind, now, last, exp, head, tail, nw, nt),
    mine, struct.pack(DYN, 3, deadline, last, now, ttl, 0) .. ARGV[3])
  answer = last
else
  local seq, count = tail, 0
  if p then _, count = struct.unpack(PROC, p) end
  tail, nw = tail + 1, nw + 1
  redis.call('HSET', key, 's', struct.pack(SUM, 1, x, sh, ph, pn, mind, now, last, exp, head, tail, nw, nt),
    'w' .. seq, ARGV[1] .. proc, its, struct.pack(PROC, now + LIVE, count + 1),
    mine, struct.pack(DYN, 1, 0, 0, now, ttl, seq) .. ARGV[3])
  local again = mind > now and not more and math.ceil((mind - now) / 1000) or (more or mind > 0) and 0 or -1
  answer = struct.pack('>dddd', x + sh + ph + nw - 1, again, seq, last)
end
if move then redis.call('PEXPIREAT', key, exp) end
return answer
