-- Releases a grant, or gives up a place in the line, and hands the lock on.
-- KEYS[1] the lock. ARGV: 1 the sender, see SENDER in layout.lua; 2 "1" to leave a tombstone, because a request of this claim may still be
-- on its way; 3 at a node of a quorum only: what the node wrote down when it refused the claim, see REFUSED in layout.lua, or empty: it did
-- not.
-- Reply: FREE more full: the grant has ended. LEFT more full: waits no more. NONE more full: was not there, or its lease was over.
--        `more` is 1: renew.lua has work to do. `full` is 1: there is no room for a tombstone, call this again later.
-- include layout
local retention, id, in_cluster, prefix = struct.unpack(SENDER, ARGV[1])
local tombstone, refusal, inbox, cluster = ARGV[2] == '1', ARGV[3], string.sub(key, 1, prefix) .. '@', in_cluster == 1
local own_field, status, full = 'c' .. id, 'NONE', 0
local summary, record = unpack(redis.call('HMGET', key, 's', own_field))
-- include idle, open, change
local claim = lone
if lone and lone.id == id then
  lock.lone = false
  del('l' .. id)
else
  if late or lone and tombstone or lock.tombstones > 0 then
    -- include clear
    record = redis.call('HGET', key, own_field)
  end
  claim = record and unpack_claim(record)
end
if claim and claim.state == TOMBSTONE then claim, tombstone = nil, false end
if tombstone and lock.tombstones >= TOMBS then tombstone, full = false, 1 end
if tombstone then
  touch(lock)
  local till, stones = math.ceil(now / TOMB + 1) * TOMB, redis.call('HGET', key, 't')
  local first, number, first_end = 1, 1, till
  if stones then first, number, first_end = struct.unpack(STONES, stones) end
  set('t', struct.pack(STONES, first, number + 1, first_end))
  set('t' .. number, struct.pack(STONE, till, id))
  set_claim(own_field, { state = TOMBSTONE, deadline = till, token = 0, since = now, lease = 2 * TOMB, number = number,
    terms = struct.pack(TERMS, 0, 0, 0, string.rep('0', 16)) })
  lock.tombstones = lock.tombstones + 1
  expire(lock, till, retention)
elseif claim then
  del(own_field)
end
if claim and claim.state == WAITS then
  status, lock.waiting = 'LEFT', lock.waiting - 1
  local process = unpack_process(redis.call('HGET', key, 'p' .. claim.process))
  leave_place('w' .. claim.number, claim.process, process)
  processes[claim.process] = process
elseif claim then
  if claim.deadline > now then status = 'FREE' end
  count(lock, claim, -1)
end
if claim or tombstone or written or #sets > 0 or #dels > 0 or lock.waiting > 0 then
  -- The hand-over reads the line as it is stored.
  if status == 'LEFT' then touch(lock) end
  -- include hand_over
  -- The key of an idle lock stays for its last token alone.
  local rest = math.floor(math.max(now, lock.token) / 1000) + retention
  if lock.holders + lock.waiting + lock.tombstones == 0 and lock.expires > rest + retention then lock.expires, lock.moved = rest, true end
  save(lock, true)
end
-- If the refused claim is not in the sorted set any more, tell.lua has told it to ask. It leaves instead, so others are told.
if refusal and (status == 'FREE' or refusal ~= '' and redis.call('ZREM', 'redlock:' .. key, refusal) == 0) then
  -- include tell
  if not spare then redis.call('HDEL', key, 'r') end
end
return status .. struct.pack('>dd', next_look(lock) == 0 and lock.waiting > 0 and 1 or 0, full)
