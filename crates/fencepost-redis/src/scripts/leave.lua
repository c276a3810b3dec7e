-- Leaves: releases a grant, or gives up a place in line, and hands the lock to whoever is next.
--
-- KEYS[1] the lock. ARGV: 1 claim id, 2 "1" to leave a tombstone, because a command of this claim may still be on its way,
-- 3 retention in ms, 4 inbox prefix, 5 "1" in a cluster.
-- Answers {what, more}: what was there, 1 a grant, 2 a place, 0 nothing; more = 1: call `tend` again, the line is long.
local mine = 'c' .. ARGV[1]
local got = redis.call('HMGET', KEYS[1], 's', mine)
local rec, what, state, retention = got[2], 0, 5, tonumber(ARGV[3])
if not got[1] and ARGV[2] == '0' then return { 0, 0 } end
open(KEYS[1], got[1])
if purge() then rec = redis.call('HGET', key, mine) end
local mode, n, of, proc, seq, _
if rec then
  state, _, _, seq, _, _, mode, n, of, proc = struct.unpack(REC, rec)
end
if ARGV[2] == '1' then
  local till = math.ceil(now / TOMB + 1) * TOMB
  touch()
  if not rec or state < 5 then nt = nt + 1 end
  due(till)
  set(mine, struct.pack(DYN, 5, till, 2 * TOMB, 0, 0, now) .. struct.pack('>BI4I4c16', 0, 0, 0, string.rep('0', 16)))
  expire(till, retention)
elseif not rec or state == 5 then
  -- Its lease has ended, and it may have been the first to see that: whoever is next need not wait for another.
  local more, _ = false, nil
  if dirty and nw > 0 and x == 0 then
    _, more = tend(ARGV[4], ARGV[5])
    save()
  end
  return { 0, more and 1 or 0 }
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
  what = 1
  remove(mode, n)
end
local more = false
if nw == 0 then
  head = tail
elseif x == 0 then
  -- `tend` reads: what is pending is written first, but for a grant that is merely taken out.
  if #sets > 0 or state == 1 then save() end
  _, more = tend(ARGV[4], ARGV[5])
end
-- The key of an idle lock stays for its last token alone.
local rest = math.floor(math.max(now, last) / 1000) + retention
if x + sh + ph + nw + nt == 0 and exp > rest + retention then exp, move = rest, true end
save()
return { what, more and 1 or 0 }
