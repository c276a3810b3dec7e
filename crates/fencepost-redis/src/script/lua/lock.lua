-- The layout of a lock in Redis: one hash. Its fields:
--   s      the summary. SUMMARY: its form, exclusive holders, shared ones, ones of permits, permits held, earliest deadline or 0, time last
--          seen, last token, expiry of the key, first and next number of the queue, claims in it, tombstones. OWNER follows if it
--          counts an exclusive holder: the id and the client of that. While a scan for the dead is under way, SCANNED (the earliest
--          deadline that it has found) and its cursor follow. A lock without holders, claims in the queue and tombstones has no other
--          fields but e.
--   c<id>  a claim. CLAIM: RECORD, which is state, deadline, token, since, lease, number in the queue or of the tombstone; then its terms.
--          If the claim is evicted, a zero byte follows its text, and then who evicted it and why.
--   w<n>   number n in the queue. WAITER: id, client.     p<client>  that has claims in the queue. CLIENT: until when it
--          counts as alive, number of its claims.
--   t<n>   number n of the tombstones, in the order of their ends. STONE: end, id.     t  STONES: first and next number, end of the first.
--   e      only at a node of a quorum: the run of the server in which it gave its last vote, `/` and the longest lease, see stay_out.
--   u      of a marked holder: its id, and the channel of its client.
-- Another key, only at a node of a quorum: `redlock:` and the lock's key, a sorted set of the claims that it has refused, the oldest
-- first. REFUSED: when the claim was made, id; then its terms.
-- Upgrades: a conversion makes a holder exclusive or shared, see `convert`. A downgrade takes the next number, and an upgrade that of the
-- downgrade before it, so that a late request is recognised.
-- A shared holder that waits to be the only one is marked. Its mode is EXCLUSIVE meanwhile, and the summary counts one exclusive holder
-- beside shared ones: then the lock admits nobody. `of` in the terms of an exclusive or shared holder is twice the number of its last
-- conversion, and 1 more if it is marked.
-- TERMS: mode, permits, out of how many, client; then the claim's text, which is JSON of core and has no zero byte.
-- SENDER: retention, id, "in a cluster", length of the prefix of all keys.
-- REQUEST: `joins`, which is 1 if it joins the queue, and 2 more if it passes claims that wait; lease; then sender and terms.
-- Times are µs of the server's clock; retention and expiry are ms. A client has 16 hex digits.
-- A client has a channel for messages: the inbox prefix and its name. The messages are in inbox.rs.

-- Whether this call has written, and how many fields it may still scan: a call for many locks leaves the last of them to the next call.
local written, budget = false, SCAN

-- Reads a claim, and cuts its deadline to one length from now. `shortened`: the stored one was later, because the clock was set back.
local function unpack_claim(record)
  local state, stored, token, since, lease, number, mode, permits, of, client = struct.unpack(CLAIM, record)
  local length = state == HANDED and LIVE or state == TOMBSTONE and 2 * TOMB or lease
  local deadline = state == WAITS and 0 or math.min(stored, now + length)
  return { state = state, deadline = deadline, token = token, since = since, lease = lease, number = number, mode = mode,
    permits = permits, of = of, client = client, terms = string.sub(record, TERMS_START), shortened = stored > deadline }
end

local function read_claim(lock, id)
  local record = redis.call('HGET', lock.key, 'c' .. id)
  return record and unpack_claim(record)
end

local function unpack_client(field)
  local alive, claims = 0, 0
  if field then alive, claims = struct.unpack(CLIENT, field) end
  return { alive = math.min(alive, now + LIVE), claims = claims, changed = false, unreached = false }
end

-- Changes of a lock are collected, and written by `save`: the fields to set, each with its value, and to delete.
local function set(lock, field, value)
  local sets = lock.sets
  sets[#sets + 1], sets[#sets + 2] = field, value
end
local function del(lock, field) lock.dels[#lock.dels + 1] = field end
local function set_claim(lock, id, claim)
  set(lock, 'c' .. id, struct.pack(RECORD, claim.state, claim.deadline, claim.token, claim.since, claim.lease, claim.number) .. claim.terms)
end

-- The key is to last as long as anything in it may last, to `time` at least, and `retention` later. It is moved
-- by half a retention more than needed, so that most calls need not move it.
local function expire(lock, time)
  local need = math.floor(math.max(now, lock.token, time) / 1000) + lock.retention
  if lock.expires < need then lock.expires, lock.moved = need + math.floor(lock.retention / 2), true end
end

-- Makes a write that a full server allows: deletions, or the expiry as it is. After it the server allows all writes of this call.
local function touch(lock)
  if #lock.dels > 0 then
    redis.call('HDEL', lock.key, unpack(lock.dels))
    lock.dels, written = {}, true
  elseif not written then
    redis.call('PEXPIREAT', lock.key, lock.expires)
    written = true
  end
end

-- Writes what has changed. It deletes before it sets, because a field may be in both. `always`: also on a full server.
local function save(lock, always)
  if always then touch(lock) end
  local holders, mode, marked = lock.holders, lock.mode, lock.marked
  if lock.waiting == 0 then lock.first = lock.next end
  if holders + lock.tombstones == 0 and (lock.waiting == 0 or not lock.cursor) then lock.earliest, lock.cursor = 0, false end
  local exclusive, owner = marked and 1 or mode == EXCLUSIVE and holders or 0, ''
  if exclusive == 1 then owner = lock.owner end
  local summary = struct.pack(SUMMARY, FORM, exclusive, marked and holders - 1 or mode == SHARED and holders or 0,
    mode == PERMITS and holders or 0, lock.permits, lock.earliest, now, lock.token, lock.expires, lock.first, lock.next, lock.waiting,
    lock.tombstones) .. owner
  if lock.cursor then summary = summary .. struct.pack(SCANNED, lock.found) .. lock.cursor end
  set(lock, 's', summary)
  if #lock.dels > 0 then touch(lock) end
  redis.call('HSET', lock.key, unpack(lock.sets))
  if lock.moved then redis.call('PEXPIREAT', lock.key, lock.expires) end
  lock.sets, written, lock.moved = {}, true, false
  -- The marked holder is told that it is the only one now.
  local upgrader = lock.alone and redis.call('HGET', lock.key, 'u')
  if upgrader then redis.pcall('PUBLISH', string.sub(upgrader, 17), 'H' .. string.sub(upgrader, 1, 16)) end
  lock.alone = false
end

-- Returns whether the holder waits to be the only one.
local function is_marked(claim) return claim.mode == EXCLUSIVE and (claim.of or 0) % 2 == 1 end

-- Removes the mark, because the marked holder has left or waits no more.
local function unmark(lock)
  lock.marked, lock.mode = false, SHARED
  del(lock, 'u')
end

-- Counts a holder.
local function count(lock, id, claim)
  lock.holders, lock.permits, lock.mode = lock.holders + 1, lock.permits + claim.permits, claim.mode
  if claim.mode == EXCLUSIVE then lock.owner = struct.pack(OWNER, id, claim.client) end
end

-- Counts that a claim holds no more. Beside a marked holder the lock's mode stays EXCLUSIVE while shared ones leave.
local function uncount(lock, claim)
  lock.holders, lock.permits = lock.holders - 1, lock.permits - claim.permits
  if lock.marked and claim.mode == SHARED then lock.alone = lock.holders == 1 end
  if is_marked(claim) then unmark(lock) end
end

-- Returns whether the claim may hold the lock beside its holders.
local function fits(lock, claim)
  if lock.holders > 0 and (claim.mode ~= lock.mode or claim.mode == EXCLUSIVE) then return false end
  return claim.mode ~= PERMITS or lock.permits + claim.permits <= claim.of
end

-- Writes a holder, and remembers its deadline.
local function set_holder(lock, id, claim)
  if lock.earliest == 0 or claim.deadline < lock.earliest then lock.earliest = claim.deadline end
  if lock.cursor and (lock.found == 0 or claim.deadline < lock.found) then lock.found = claim.deadline end
  set_claim(lock, id, claim)
end

-- Confirms a grant for a lease from now on. No lease gets shorter. The deadline of a HANDED claim is not that of a lease, so callers set it
-- to 0 before.
local function confirm(lock, id, claim, lease)
  claim.deadline = math.max(claim.deadline, now + lease)
  claim.state, claim.lease = HOLDS, math.max(lease, claim.deadline - now)
  set_holder(lock, id, claim)
  expire(lock, claim.deadline)
end

-- Returns whether the claim holds the lock and may continue to.
local function holds(claim) return claim and (claim.state == HANDED or claim.state == HOLDS) and claim.deadline > now end

-- Returns in how many ms another look at the lock is worthwhile. -1: not before the lock changes.
local function next_look(lock)
  if lock.earliest > now and not lock.more then return math.ceil((lock.earliest - now) / 1000) end
  return (lock.more or lock.earliest > 0) and 0 or -1
end

-- Clears away tombstones that have ended.
local function clear_tombstones(lock)
  local stones = redis.call('HGET', lock.key, 't')
  if not stones then return end
  local first, after, first_end = struct.unpack(STONES, stones)
  if first_end > now and first_end <= now + 2 * TOMB then return end
  local fields, ended = {}, {}
  for n = first, math.min(first + MOST, after) - 1 do fields[#fields + 1] = 't' .. n end
  for i, stone in ipairs(redis.call('HMGET', lock.key, unpack(fields))) do
    local stone_end, id = struct.unpack(STONE, stone)
    first_end = math.min(stone_end, now + 2 * TOMB)
    if stone_end > now then break end
    first, ended[i] = first + 1, 'c' .. id
    del(lock, fields[i])
  end
  for i, record in ipairs(#ended > 0 and redis.call('HMGET', lock.key, unpack(ended)) or {}) do
    -- A record that came back with another state is cleared away with its own end.
    if record and string.byte(record) == TOMBSTONE then
      del(lock, ended[i])
      lock.tombstones = lock.tombstones - 1
    end
  end
  if first < after then set(lock, 't', struct.pack(STONES, first, after, first_end)) else del(lock, 't') end
  save(lock, true)
end

-- Clears away dead holders, and shortens what a clock set back would lengthen. Scans a part of a large lock: its earliest deadline stays
-- in the past then, and the next call continues. `back`: the clock was set back.
local function clear_dead(lock, back)
  -- After another step back of the clock all is scanned again.
  if back or not lock.cursor then lock.cursor, lock.found = false, 0 end
  local from, dead, fields = lock.cursor or '0', 0, {}
  local cursor = budget <= 0 and from
  if not cursor then cursor, fields = unpack(redis.call('HSCAN', lock.key, from, 'COUNT', budget)) end
  budget = budget - #fields / 2
  for i = 1, #fields, 2 do
    local field, kind = fields[i], string.byte(fields[i])
    local claim = kind == KIND_CLAIM and unpack_claim(fields[i + 1])
    -- A tombstone that has a number was cleared away before, or has not ended.
    local numbered = claim and claim.state == TOMBSTONE and claim.number > 0
    if claim and claim.shortened then
      local _, id = struct.unpack(CLAIM_FIELD, field)
      set_claim(lock, id, claim)
      if numbered then set(lock, 't' .. claim.number, struct.pack(STONE, claim.deadline, id)) end
    end
    if claim and claim.state ~= WAITS and not numbered then
      if claim.deadline <= now and dead < MOST then
        del(lock, field)
        dead = dead + 1
        if claim.state == TOMBSTONE then lock.tombstones = lock.tombstones - 1 else uncount(lock, claim) end
      elseif lock.found == 0 or claim.deadline < lock.found then
        lock.found = claim.deadline
      end
    elseif kind == KIND_CLIENT then
      local alive, claims = struct.unpack(CLIENT, fields[i + 1])
      if alive > now + LIVE then set(lock, field, struct.pack(CLIENT, now + LIVE, claims)) end
    end
    if #lock.sets > 200 then
      touch(lock)
      redis.call('HSET', lock.key, unpack(lock.sets))
      lock.sets = {}
    end
  end
  if cursor ~= '0' or budget <= 0 and #fields == 0 then
    lock.cursor, lock.earliest = cursor, lock.earliest > 0 and math.min(lock.earliest, now) or now
  else
    lock.earliest = lock.found
    -- The cursor of a scan means nothing to the server that takes this one's place. Another scan finds what such a scan has missed.
    if lock.cursor and lock.holders > 0 and (lock.earliest == 0 or lock.earliest > now + TOMB) then lock.earliest = now + TOMB end
    lock.cursor = false
  end
  save(lock, true)
end

-- Reads the summary of the lock at `key`, and clears away what has ended. That is saved at once, before the rest of the request, because a
-- summary that counts a claim which is gone would keep the lock held for good. All holders have the same mode, unless one is `marked`.
-- `alone`: that one has become the only holder. `clients`: those that were read in this call, by name. `asked`: the ids of the claims whose
-- states the reply tells, so that they need no message. `all_served`, `more`: see hand_over.
local function open(key, inbox, cluster, retention)
  local summary = known
  if summary == nil then summary = redis.call('HGET', key, 's') end
  local _, exclusive, shared, of_permits, permits, earliest, seen, token, expires, first, after, waiting, tombstones, rest =
    FORM, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1
  local owner, found, cursor = '', nil, nil
  if summary then
    local form = string.byte(summary) or 0
    if form ~= FORM then error('FENCEPOST layout ' .. form .. ' of the lock is not known to this version') end
    _, exclusive, shared, of_permits, permits, earliest, seen, token, expires, first, after, waiting, tombstones, rest =
      struct.unpack(SUMMARY, summary)
    if exclusive > 0 then
      owner, rest = string.sub(summary, rest, rest + OWNER_LENGTH - 1), rest + OWNER_LENGTH
    end
    if rest <= #summary then
      found, rest = struct.unpack(SCANNED, summary, rest)
      cursor = string.sub(summary, rest)
    end
  end
  local lock = { key = key, inbox = inbox, cluster = cluster, retention = retention, sets = {}, dels = {}, clients = {}, asked = {},
    holders = exclusive + shared + of_permits, mode = exclusive > 0 and EXCLUSIVE or shared > 0 and SHARED or PERMITS,
    permits = permits, earliest = earliest, token = token, expires = expires, first = first, next = after, waiting = waiting,
    tombstones = tombstones, owner = owner, found = found, cursor = cursor, moved = false, marked = exclusive > 0 and shared > 0,
    alone = false, all_served = true, more = false }
  local back = now < seen
  local late = back or earliest > 0 and earliest <= now
  if tombstones > 0 then clear_tombstones(lock) end
  if late then clear_dead(lock, back) end
  return lock
end

-- The inbox prefix, which is the prefix of all keys and one sign more.
local function inbox_of(key, prefix) return string.sub(key, 1, prefix) .. '@' end
