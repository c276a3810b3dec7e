-- Changes of locks: collected, and written by `save`. The fields to set, each with its value, and to delete; whether this call has written.
local sets, dels, written = {}, {}, false
-- How many fields the call may still scan; a call for many locks leaves the last of them to the next call. For hand_over.lua the processes
-- that are known, by name; the claims whose states the reply tells, which need no message; and its results.
local budget, processes, asked, all_served, more = SCAN, {}, {}, true, false

-- Reads a claim. `shortened`: a clock that was set back would have lengthened it.
local function unpack_claim(record)
  local state, stored, token, since, lease, number, mode, permits, of, process = struct.unpack(CLAIM, record)
  local length = state == HANDED and LIVE or state == TOMBSTONE and 2 * TOMB or lease
  local deadline = state == WAITS and 0 or math.min(stored, now + length)
  return { state = state, deadline = deadline, token = token, since = since, lease = lease, number = number, mode = mode,
    permits = permits, of = of, process = process, terms = string.sub(record, TERMS_START), shortened = stored > deadline }
end

local function unpack_process(field)
  local alive, claims = 0, 0
  if field then alive, claims = struct.unpack(PROCESS, field) end
  return { alive = math.min(alive, now + LIVE), claims = claims, changed = false, unreached = false }
end

local function set(field, value) sets[#sets + 1], sets[#sets + 2] = field, value end
local function del(field) dels[#dels + 1] = field end
local function set_claim(field, claim)
  set(field, struct.pack(RECORD, claim.state, claim.deadline, claim.token, claim.since, claim.lease, claim.number) .. claim.terms)
end

-- The key is to last until `time` at least, see `expiry`.
local function expire(lock, time, retention)
  local expires = expiry(lock.expires, time, lock.token, retention)
  lock.moved, lock.expires = lock.moved or expires > lock.expires, expires
end

-- Frees a place in the line, and counts one claim less for its process.
local function leave_place(field, name, process)
  process.claims, process.changed = process.claims - 1, true
  del(field)
  if process.claims <= 0 then del('p' .. name) end
end

-- Makes a write that a full server allows: deletions, or the expiry as it is. After it the server allows all writes of this call.
local function touch(lock)
  if #dels > 0 then
    redis.call('HDEL', lock.key, unpack(dels))
    dels, written = {}, true
  elseif not written then
    redis.call('PEXPIREAT', lock.key, lock.expires)
    written = true
  end
end

-- Writes what has changed: deletes before it sets, for a field may be in both. `always`: on a full server, too.
local function save(lock, always)
  if always then touch(lock) end
  local holders, mode, lone, summary = lock.holders, lock.mode, lock.lone, nil
  lock.seen = now
  if lock.waiting == 0 then lock.first = lock.next end
  if holders + lock.tombstones == 0 and not lock.cursor then lock.earliest = 0 end
  if holders + lock.tombstones + lock.waiting == 0 then
    lock.earliest, lock.cursor = 0, false
    summary = struct.pack(IDLE_SUMMARY, IDLE_FORM, now, lock.token, lock.expires, lock.next)
  elseif lone then
    summary = struct.pack(IDLE_SUMMARY, lone.form, now, lock.token, lock.expires, lock.next)
      .. struct.pack(REQUEST, lone.joins, lone.deadline - now, lone.retention, lone.id, lone.in_cluster, lone.prefix) .. lone.terms
  else
    summary = struct.pack(SUMMARY, FULL_FORM, lock.marked and 1 or mode == EXCLUSIVE and holders or 0,
      lock.marked and holders - 1 or mode == SHARED and holders or 0,
      mode == PERMITS and holders or 0, lock.permits, lock.earliest, now, lock.token, lock.expires, lock.first, lock.next, lock.waiting,
      lock.tombstones)
    if lock.cursor then summary = summary .. struct.pack(SCANNED, lock.found) .. lock.cursor end
  end
  set('s', summary)
  if #dels > 0 then touch(lock) end
  redis.call('HSET', lock.key, unpack(sets))
  if lock.moved then redis.call('PEXPIREAT', lock.key, lock.expires) end
  sets, written, lock.moved = {}, true, false
  -- The marked holder is told that it is the only one now.
  local upgrader = lock.alone and redis.call('HGET', lock.key, 'u')
  if upgrader then redis.pcall('PUBLISH', string.sub(upgrader, 17), 'H' .. string.sub(upgrader, 1, 16)) end
  lock.alone = false
end

-- Does the holder wait to be the only one?
local function is_marked(claim) return claim.mode == EXCLUSIVE and (claim.of or 0) % 2 == 1 end

-- The marked holder has left, or waits no more.
local function unmark(lock)
  lock.marked, lock.mode = false, SHARED
  del('u')
end

-- Counts a holder, or with -1 that it holds no more. Beside a marked holder the lock's mode stays EXCLUSIVE while shared ones leave.
local function count(lock, claim, by)
  lock.holders, lock.permits = lock.holders + by, lock.permits + by * claim.permits
  if lock.marked and claim.mode == SHARED then lock.alone = lock.holders == 1 else lock.mode = claim.mode end
  if is_marked(claim) then unmark(lock) end
end

-- May the claim hold the lock beside its holders?
local function fits(lock, claim)
  if lock.holders > 0 and (claim.mode ~= lock.mode or claim.mode == EXCLUSIVE) then return false end
  return claim.mode ~= PERMITS or lock.permits + claim.permits <= claim.of
end

-- Writes a holder, and remembers its deadline.
local function set_holder(lock, field, claim)
  if lock.earliest == 0 or claim.deadline < lock.earliest then lock.earliest = claim.deadline end
  if lock.cursor and (lock.found == 0 or claim.deadline < lock.found) then lock.found = claim.deadline end
  set_claim(field, claim)
end

-- Confirms a grant for a lease from now on. No lease gets shorter. The deadline of a HANDED claim is no lease: callers set it to 0 before.
local function confirm(lock, field, claim, lease, retention)
  claim.deadline = math.max(claim.deadline, now + lease)
  claim.state, claim.lease = HOLDS, math.max(lease, claim.deadline - now)
  set_holder(lock, field, claim)
  expire(lock, claim.deadline, retention)
end

-- In how many ms another look at the lock is worth it; -1: not before it changes.
local function next_look(lock)
  if lock.earliest > now and not more then return math.ceil((lock.earliest - now) / 1000) end
  return (more or lock.earliest > 0) and 0 or -1
end
