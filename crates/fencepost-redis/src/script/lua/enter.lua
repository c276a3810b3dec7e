-- Asks for the lock, or asks again. Asking again changes nothing but the lease, and how long the process counts as alive.
-- KEYS[1] the lock. ARGV: 1 the request, see REQUEST in layout.lua.
-- Reply: HDEL token: holds, and HDEL releases it. HELD token: holds.
--        WAIT again number token: waits. `again`: ms until another look is worth it, or -1. `number`: in the line. `token`: the last one.
--        BUSY again: left nothing behind. GONE: has left, was evicted, or its lease is over.
--        DENY limit: asks for more permits than the limit of the lock.
-- include layout
local joins, lease, retention, id, in_cluster, prefix, terms = struct.unpack(REQUEST, ARGV[1])
local mode, permits, of, process = struct.unpack(TERMS, ARGV[1], terms)
local summary, status = redis.call('HGET', key, 's'), 'HELD'
-- include idle
if form ~= FULL_FORM and not lone and mode == EXCLUSIVE then
  -- The usual case: nobody holds the lock or waits.
  token = math.max(token + 1, now)
  local moved = expiry(expires, now + lease, token, retention)
  summary = struct.pack(IDLE_SUMMARY, HDEL_FORM, now, token, moved, number) .. ARGV[1]
  redis.call('HSET', key, 's', summary, 'l' .. id, '')
  if moved > expires then redis.call('PEXPIREAT', key, moved) end
  status = 'HDEL'
else
  -- include open, change
  local inbox, cluster = string.sub(key, 1, prefix) .. '@', in_cluster == 1
  -- A claim that does not join the line leaves a lone holder as it is: HDEL still releases the lock.
  if not lone or joins % 2 == 1 or lone.id == id or late then
    -- include clear
  end
  local own_field, process_field = 'c' .. id, 'p' .. process
  local record, alive = unpack(redis.call('HMGET', key, own_field, process_field))
  local claim = record and unpack_claim(record)
  if lone and not lock.lone and lock.holders > 0 and not claim then
    -- From now on it needs a script to release the lock, and should know.
    redis.pcall('PUBLISH', inbox .. lone.process, 'L' .. lone.id)
  end
  local waits, known = claim and claim.state == WAITS, claim
  if not claim or waits then
    if waits then
      touch(lock)
      asked[id] = true
      processes[process] = unpack_process(alive)
      processes[process].alive, processes[process].changed = now + LIVE, true
      expire(lock, now + LIVE, retention)
    end
    -- include hand_over
    if written or #dels > 0 then
      save(lock)
      record, alive = unpack(redis.call('HMGET', key, own_field, process_field))
      claim = record and unpack_claim(record)
    end
  end

  if claim and claim.state == WAITS then
    return 'WAIT' .. struct.pack('>ddd', next_look(lock), claim.number, lock.token)
  elseif claim then
    -- One whose lease is over is still there if no scan has found it yet.
    if claim.state == EVICTED or claim.state == TOMBSTONE or claim.deadline <= now then return 'GONE' end
    if waits then claim.deadline = 0 end
  else
    claim = { state = HOLDS, deadline = 0, token = 0, since = now, lease = lease, number = 0, mode = mode, permits = permits, of = of,
      terms = string.sub(ARGV[1], terms) }
    if mode == PERMITS then
      -- include limit
      if claim.of >= 0 and permits > claim.of then return 'DENY' .. struct.pack('>d', claim.of) end
    end
    if (all_served or joins >= 2) and fits(lock, claim) then
      lock.token = math.max(lock.token + 1, now)
      claim.token = lock.token
      count(lock, claim, 1)
    elseif joins % 2 == 1 then
      claim.state, claim.number = WAITS, lock.next
      set('w' .. lock.next, struct.pack(PLACE, id, process))
      set(process_field, struct.pack(PROCESS, now + LIVE, unpack_process(alive).claims + 1))
      set_claim(own_field, claim)
      lock.next, lock.waiting = lock.next + 1, lock.waiting + 1
      expire(lock, now + LIVE, retention)
      save(lock)
      return 'WAIT' .. struct.pack('>ddd', next_look(lock), claim.number, lock.token)
    else
      return 'BUSY' .. struct.pack('>d', next_look(lock))
    end
  end
  -- Saved even if the lease does not change: the client waits until replicas have this write.
  confirm(lock, own_field, claim, lease, retention)
  save(lock, known)
  token = claim.token
end
return status .. struct.pack('>d', token)
