-- Asks for the lock, or asks again.
--
-- KEYS[1] the lock. ARGV: 1 claim id (16 bytes), 2 process (16 hex digits), 3 lease in µs, 4 "1" to join the line, 5 retention
-- in ms, 6 inbox prefix, 7 "1" in a cluster, 8 what follows the dynamic part of REC: mode, permits, process, text.
-- Answers {1, token}: holds; {2, ahead, ms until another look is worth it or -1, number, last token}: waits; {3, ahead}: busy, nothing left behind;
-- {4}: gone. Repeating it changes nothing but the lease and the place's time.
local id, proc, ttl, retention = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local mine = 'c' .. id
local got = redis.call('HMGET', KEYS[1], 's', mine)
open(KEYS[1], got[1])
if purge() then got[2] = redis.call('HGET', key, mine) end

local more, _ = false, nil

local function hold(tok, seq, since, static)
  due(now + ttl)
  set(mine, struct.pack(DYN, 3, now + ttl, ttl, seq, tok, since) .. static)
  expire(now + ttl, retention)
  save()
  return { 1, tok }
end

local function stand(seq)
  local again = more and 0 or mind > now and math.ceil((mind - now) / 1000) or -1
  return { 2, x + sh + ph + math.max(nw - 1, 0), again, seq, last }
end

local function place()
  local p = redis.call('HGET', key, 'p' .. proc)
  local count = 0
  if p then _, count = struct.unpack(PROC, p) end
  return count
end

local rec = got[2]
if rec then
  local state, deadline, length, seq, tok, since, mode = struct.unpack(REC, rec)
  if state == 1 then
    -- Written first, so that `tend` finds the process alive.
    touch()
    redis.call('HSET', key, 'p' .. proc, struct.pack(PROC, now + LIVE, place()))
    if x == 0 then _, more = tend(ARGV[6], ARGV[7]) end
    expire(now + LIVE, retention)
    save()
    state, _, _, seq, tok, since = struct.unpack(REC, redis.call('HGET', key, mine))
    if state == 1 then return stand(seq) end
    return hold(tok, seq, since, string.sub(rec, 42))
  end
  -- An expired one would have been purged, unless the dead were too many for one call.
  if state == 4 or state == 5 or deadline <= now then return { 4 } end
  if deadline > now + ttl then return { 1, tok } end
  touch()
  return hold(tok, seq, since, string.sub(rec, 42))
end

-- Beside an exclusive holder nobody fits; else somebody may have been passed over, or the dead stand in the way.
local clear = nw == 0
if nw > 0 and x == 0 then
  clear, more = tend(ARGV[6], ARGV[7])
  if dirty or #dels > 0 then save() end
end
local mode, n, of = struct.unpack('>BI4I4', ARGV[8])
if clear and fits(mode, n, of) then
  add(mode, n)
  return hold(token(), 0, now, ARGV[8])
end
if ARGV[4] == '0' then return { 3, x + sh + ph + nw } end
local seq = tail
tail, nw = tail + 1, nw + 1
set('w' .. seq, id .. proc)
set('p' .. proc, struct.pack(PROC, now + LIVE, place() + 1))
set(mine, struct.pack(DYN, 1, 0, ttl, seq, 0, now) .. ARGV[8])
expire(now + LIVE, retention)
save()
return stand(seq)
