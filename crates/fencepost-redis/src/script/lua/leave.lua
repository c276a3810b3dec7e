-- Releases a grant, or gives up a place in line, and hands the lock to the next claim.
--
-- KEYS[1] the lock. ARGV: 1 the claim's name, see head.lua, 2 a guess of the line's first field or, if this claim has never waited,
-- nothing; 3 anything to leave a tombstone, because a command of this claim may still be on its way.
-- Answers what was there, 1 a grant, 2 a place, 0 nothing; and 4 more: call `tend` again, the line is long; and 8 more: there is no room
-- for a tombstone, call this again later.
local own = ARGV[1]
local mine = 'c' .. string.sub(own, 9, 24)
local got = redis.call('HMGET', KEYS[1], 's', mine, ARGV[2] or '')
local s, rec, ahead = got[1], got[2], got[3]
-- include clock
-- include head
local what, state, retention, tombstone = 0, 5, struct.unpack('>d', own), ARGV[3]
if not s and not tombstone then return 0 end
if s then
  -- include summary
end
if rec then state = string.byte(rec) end

-- The usual case: an exclusive holder leaves, and nobody waits, or the first waiter is alive and wants the lock exclusively.
local unheard
if state > 1 and state < 5 and string.byte(rec, 42) == 1 and not tombstone and now >= seen and (mind == 0 or mind > now) then
  if nw == 0 then
    -- The key of an idle lock stays for its last token alone.
    local rest, move = math.floor(math.max(now, last) / 1000) + retention, false
    if nt == 0 and exp > rest + retention then exp, move = rest, true end
    redis.call('HDEL', key, mine)
    if nt == 0 then
      redis.call('HSET', key, 's', struct.pack(IDLE, 3, now, last, exp, tail))
    else
      redis.call('HSET', key, 's', struct.pack(SUM, 1, 0, 0, 0, 0, mind, now, last, exp, tail, tail, 0, nt))
    end
    if move then redis.call('PEXPIREAT', key, exp) end
    return 1
  end
  local first = 'w' .. head
  local place = first == ARGV[2] and ahead or redis.call('HGET', key, first)
  if place then
    local id, whose = string.sub(place, 1, 16), string.sub(place, 17)
    local its, theirs = 'c' .. id, 'p' .. whose
    got = redis.call('HMGET', key, its, theirs)
    local alive, count = 0, 0
    if got[2] then alive, count = struct.unpack(PROC, got[2]) end
    if alive > now and string.byte(got[1], 42) == 1 then
      redis.call('HDEL', key, mine, first, count > 1 and first or theirs)
      local tok = math.max(last + 1, now)
      -- Where it is not allowed the script must not end half-way: the winner asks by itself within a second.
      local reached = redis.pcall('PUBLISH', string.sub(key, 1, string.byte(own, 26)) .. '@' .. whose, 'G' .. id .. struct.pack('>d', tok))
      if reached ~= 0 or string.byte(own, 25) == 1 then
        last, nw = tok, nw - 1
        head = nw > 0 and head + 1 or tail
        if nt == 0 or alive < mind then mind = alive end
        local summary = struct.pack(SUM, 1, x, sh, ph, pn, mind, now, last, exp, head, tail, nw, nt)
        local grant = struct.pack('>Bddd', 2, alive, tok, now) .. string.sub(got[1], 26)
        if count > 1 then
          redis.call('HSET', key, 's', summary, its, grant, theirs, struct.pack(PROC, alive, count - 1))
        else
          redis.call('HSET', key, 's', summary, its, grant)
        end
        return 1
      end
      -- The message reached nobody: the place is put back, and the next one is tried.
      unheard = { first, place, theirs, got[2] }
    end
  end
end

-- include line
local mode, n, proc, seq
if purge() then rec = redis.call('HGET', key, mine) end
state = 5
local deadline
if rec then state, deadline, _, _, _, seq, mode, n, _, proc = record(rec) end
if unheard then
  dirty = true
  set(unheard[1], unheard[2])
  set(unheard[3], unheard[4])
end
local more, full = false, 0
if rec and state == 5 then tombstone = nil end
if tombstone and nt >= TOMBS then tombstone, full = nil, 8 end
if tombstone then
  entomb(own, retention)
elseif state == 5 then
  -- Its lease has ended, and this call may be the first to see that: it hands the lock to the next claim at once.
  if dirty and nw > 0 and x == 0 then
    _, more = tend(string.sub(key, 1, string.byte(own, 26)) .. '@', string.byte(own, 25) == 1)
    save()
  end
  more = more or nw > 0 and mind > 0 and mind <= now
  return full + (more and 4 or 0)
else
  del(mine)
end
if state == 1 then
  what, nw = 2, nw - 1
  del('w' .. seq)
  local p = redis.call('HGET', key, 'p' .. proc)
  if p then
    local alive, count = struct.unpack(PROC, p)
    if count > 1 then set('p' .. proc, struct.pack(PROC, alive, count - 1)) else del('p' .. proc) end
  end
elseif state < 5 then
  -- A scan has not come to it yet.
  what = deadline > now and 1 or 0
  remove(mode, n)
end
if nw == 0 then
  head = tail
elseif x == 0 then
  -- `tend` reads: what is pending is written first, but for a grant that is merely taken out.
  if #sets > 0 or state == 1 then save() end
  _, more = tend(string.sub(key, 1, string.byte(own, 26)) .. '@', string.byte(own, 25) == 1)
end
local rest = math.floor(math.max(now, last) / 1000) + retention
if x + sh + ph + nw + nt == 0 and exp > rest + retention then exp, move = rest, true end
save()
more = more or nw > 0 and mind > 0 and mind <= now
return what + full + (more and 4 or 0)
