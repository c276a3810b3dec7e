-- Makes a shared holder exclusive, or any holder shared: see "Upgrades" in layout.lua.
-- KEYS[1] the lock. ARGV: 1 the sender, see SENDER in layout.lua; 2 the number of the turn; 3 "1" for exclusive, else for shared; 4 if
-- exclusive: "1" to mark the claim while others hold the lock, too; if shared: the token that the holder knows.
-- Reply: HELD token: holds exclusively. WAIT again: is marked, and others hold the lock. BUSY again: the same without a mark.
--        ELSE: another holder is marked. DONE more: is shared. GONE: holds no more, or a later turn came first.
--        `again`: ms until another look is worth it, or -1. `more` is 1: renew.lua has work to do.
-- include layout
local retention, id, in_cluster, prefix = struct.unpack(SENDER, ARGV[1])
local turn, inbox, cluster = tonumber(ARGV[2]), string.sub(key, 1, prefix) .. '@', in_cluster == 1
local summary = redis.call('HGET', key, 's')
-- include idle, open, change
if lone and lone.id ~= id then return 'GONE' end
-- include clear
local field = 'c' .. id
local record = redis.call('HGET', key, field)
local claim = record and unpack_claim(record)
if not claim or claim.state ~= HANDED and claim.state ~= HOLDS or claim.deadline <= now then return 'GONE' end
local known, marked = math.floor(claim.of / 2), is_marked(claim)

-- Rewrites the terms of the claim for this turn.
local function become(mode, of)
  local _, _, _, process, text = struct.unpack(TERMS, claim.terms)
  claim.mode, claim.terms = mode, struct.pack(TERMS, mode, 0, 2 * turn + of, process) .. string.sub(claim.terms, text)
  set_claim(field, claim)
end

if ARGV[3] ~= '1' then
  -- A turn that was made before is not made again: by now a later one may have made the claim exclusive.
  if turn > known then
    if claim.mode == EXCLUSIVE then unmark(lock) end
    claim.token = tonumber(ARGV[4])
    become(SHARED, 0)
    touch(lock)
    -- include hand_over
    save(lock, true)
  end
  return 'DONE' .. struct.pack('>d', next_look(lock) == 0 and lock.waiting > 0 and 1 or 0)
end
if turn < known then return 'GONE' end
if claim.mode == EXCLUSIVE and not marked then return 'HELD' .. struct.pack('>d', claim.token) end
local rival = redis.call('HGET', key, 'u')
rival = rival and string.sub(rival, 1, 16) ~= id and redis.call('HGET', key, 'c' .. string.sub(rival, 1, 16))
rival = rival and unpack_claim(rival)
if rival and (rival.state == HANDED or rival.state == HOLDS) and rival.deadline > now and is_marked(rival) then return 'ELSE' end
if lock.holders == 1 then
  lock.token = math.max(lock.token + 1, now)
  claim.token = lock.token
  lock.marked, lock.mode = false, EXCLUSIVE
  if marked then del('u') end
  become(EXCLUSIVE, 0)
  expire(lock, claim.deadline, retention)
  save(lock, true)
  return 'HELD' .. struct.pack('>d', claim.token)
end
if ARGV[4] == '1' then
  if not lock.marked or not marked then
    lock.marked, lock.mode = true, EXCLUSIVE
    set('u', id .. inbox .. claim.process)
    become(EXCLUSIVE, 1)
    save(lock)
  end
  return 'WAIT' .. struct.pack('>d', next_look(lock))
end
if marked then
  unmark(lock)
  become(SHARED, 0)
  touch(lock)
  -- include hand_over
  save(lock, true)
end
return 'BUSY' .. struct.pack('>d', next_look(lock))
