-- The queue, and the requests of claims.

-- Frees a position in the queue, and counts one claim less for its client.
local function leave_queue(lock, field, name, client)
  client.claims, client.changed = client.claims - 1, true
  del(lock, field)
  if client.claims <= 0 then del(lock, 'p' .. name) end
end

-- Notes that a client which waits here has sent a request, so that it counts as alive. `stored`: its field.
local function hear(lock, name, stored)
  touch(lock)
  local client = unpack_client(stored)
  client.alive, client.changed = now + LIVE, true
  lock.clients[name] = client
  expire(lock, now + LIVE)
end

-- Replaces the claim's own number of permits by the limit that is stored for the lock, see permits.rs. The limit is read once in a call.
-- Zero: there is none. -1: it cannot be read, so no claim fits now. Nothing may raise an error here, because the call may have written.
local function limit(lock, claim)
  if lock.limit == nil then
    -- In a cluster the two keys may be in different slots.
    local stored = not lock.cluster and redis.pcall('HGET', string.sub(lock.inbox, 1, -2) .. '\1permits:' .. lock.key, 'limit')
    lock.limit = 0
    if stored then
      lock.limit = type(stored) == 'string' and string.find(stored, '^%d+$') and tonumber(stored) or -1
      if lock.limit < 1 or lock.limit > 4294967295 then lock.limit = -1 end
    end
  end
  if lock.limit ~= 0 then claim.of = lock.limit end
end

-- Hands the lock to a claim in the queue. Its client gets a message, unless this call's reply tells it. Returns false if no message reaches
-- the client.
local function hand(lock, id, name, client, claim)
  if not written then touch(lock) end
  local token = math.max(lock.token + 1, now)
  -- The error of a user who may not publish must not end the script half-way. In that case the claim asks by itself within a second.
  local reached = lock.asked[id] or redis.pcall('PUBLISH', lock.inbox .. name, 'G' .. id .. struct.pack('>d', token))
  if reached == 0 and not lock.cluster then return false end
  claim.state, claim.deadline, claim.token, claim.since = HANDED, client.alive, token, now
  count(lock, id, claim)
  set_holder(lock, id, claim)
  lock.token, lock.waiting = token, lock.waiting - 1
  return true
end

-- Walks the queue from its front, removes the claims of dead clients, and hands the lock to the claims that fit, up to the first that does
-- not. The claims of a client that no message reaches keep their positions and are passed over, because
-- within LIVE that client sends a request or is dead.
-- A server of a cluster counts only its own subscribers, so there every client counts as reached. The queue is read from the hash.
local function walk(lock)
  local number, batch, first_left, admitted, removed, passed, stop = lock.first, 1, nil, 0, 0, 0, false
  while number < lock.next and not stop do
    local fields = {}
    for i = 1, math.min(batch, lock.next - number) do fields[i] = 'w' .. number + i - 1 end
    for i, waiter in ipairs(redis.call('HMGET', lock.key, unpack(fields))) do
      local id, name, client
      if waiter then
        id, name = struct.unpack(WAITER, waiter)
        client = lock.clients[name]
      end
      if client and client.unreached then
        passed, first_left = passed + 1, first_left or number
      elseif waiter then
        local record, stored = unpack(redis.call('HMGET', lock.key, 'c' .. id, 'p' .. name))
        client = client or unpack_client(stored)
        lock.clients[name] = client
        local claim = client.alive > now and unpack_claim(record)
        if claim and claim.mode == PERMITS then limit(lock, claim) end
        -- A claim for more permits than the limit would block the queue for good. It finds that it is gone, and enters again.
        if not claim or claim.of >= 0 and claim.permits > claim.of then
          leave_queue(lock, fields[i], name, client)
          del(lock, 'c' .. id)
          lock.waiting, removed = lock.waiting - 1, removed + 1
        elseif not fits(lock, claim) then
          stop, first_left = true, first_left or number
        else
          leave_queue(lock, fields[i], name, client)
          if hand(lock, id, name, client, claim) then
            admitted, stop = admitted + 1, claim.mode == EXCLUSIVE
          else
            set(lock, fields[i], waiter)
            client.unreached, client.claims = true, client.claims + 1
            passed, first_left = passed + UNREACHED, first_left or number
          end
        end
      end
      number, lock.more = number + 1, removed >= MOST or admitted >= MOST * 5
      stop = stop or lock.more or passed >= MOST_PASSED
      if stop then break end
    end
    batch = math.min(batch * 8, 96)
  end
  lock.all_served = not stop or lock.waiting == 0
  lock.first = first_left or number
end

-- Hands the lock to waiters. Sets `all_served` if no claim that can be reached waits any more, and `more` if another call has to continue.
local function hand_over(lock)
  lock.all_served, lock.more = lock.waiting == 0, false
  if lock.waiting > 0 and (lock.holders == 0 or lock.mode ~= EXCLUSIVE) then walk(lock) end
  for name, client in pairs(lock.clients) do
    if client.changed and client.claims > 0 then
      set(lock, 'p' .. name, struct.pack(CLIENT, client.alive, client.claims))
    end
  end
  lock.clients = {}
end

-- Returns 1 if `renew` has to continue this work, else 0: a number of a reply.
local function unfinished(lock) return next_look(lock) == 0 and lock.waiting > 0 and 1 or 0 end

-- Asks for the lock. A repeated request changes nothing but the lease, and for how long the client counts as alive.
-- KEYS[1] the lock. ARGV: 2 the request, see REQUEST in lock.lua.
-- Reply: HELD token: holds.
--        WAIT look number token: waits. `look`: ms until another look is worth it, or -1. `number`: in the queue. `token`: the last one.
--        BUSY look: left nothing behind. GONE: has left, was evicted, or its lease has expired.
--        DENY limit: asks for more permits than the limit of the lock.
if request == 'enter' then
  local key = KEYS[1]
  local joins, lease, retention, id, in_cluster, prefix, terms = struct.unpack(REQUEST, ARGV[2])
  local mode, permits, of, client = struct.unpack(TERMS, ARGV[2], terms)
  local lock = open(key, inbox_of(key, prefix), in_cluster == 1, retention)
  local own_field, client_field = 'c' .. id, 'p' .. client
  local record, alive = unpack(redis.call('HMGET', key, own_field, client_field))
  local claim = record and unpack_claim(record)
  local waits, stored = claim and claim.state == WAITS, claim
  if waits then
    lock.asked[id] = true
    hear(lock, client, alive)
  end
  if waits or not claim then
    hand_over(lock)
    if written or #lock.dels > 0 then
      save(lock)
      record, alive = unpack(redis.call('HMGET', key, own_field, client_field))
      claim = record and unpack_claim(record)
    end
  end

  if claim and claim.state == WAITS then
    return 'WAIT' .. struct.pack('>ddd', next_look(lock), claim.number, lock.token)
  elseif claim then
    -- A claim whose lease has expired is still there if no scan has found it yet.
    if not holds(claim) then return 'GONE' end
    -- The deadline of a claim that was HANDED the lock is not that of a lease.
    if waits or claim.state == HANDED then claim.deadline = 0 end
  else
    claim = { state = HOLDS, deadline = 0, token = 0, since = now, lease = lease, number = 0, mode = mode, permits = permits, of = of,
      client = client, terms = string.sub(ARGV[2], terms) }
    if mode == PERMITS then
      limit(lock, claim)
      if claim.of >= 0 and permits > claim.of then return 'DENY' .. struct.pack('>d', claim.of) end
    end
    if (lock.all_served or joins >= 2) and fits(lock, claim) then
      lock.token = math.max(lock.token + 1, now)
      claim.token = lock.token
      count(lock, id, claim)
    elseif joins % 2 == 1 then
      claim.state, claim.number = WAITS, lock.next
      set(lock, 'w' .. lock.next, struct.pack(WAITER, id, client))
      set(lock, client_field, struct.pack(CLIENT, now + LIVE, unpack_client(alive).claims + 1))
      set_claim(lock, id, claim)
      lock.next, lock.waiting = lock.next + 1, lock.waiting + 1
      expire(lock, now + LIVE)
      save(lock)
      if lock.waiting == 1 and lock.mode == EXCLUSIVE then
        -- The holder is told that others want the lock now.
        local owner, its_client = struct.unpack(OWNER, lock.owner)
        redis.pcall('PUBLISH', lock.inbox .. its_client, 'L' .. owner)
      end
      return 'WAIT' .. struct.pack('>ddd', next_look(lock), claim.number, lock.token)
    else
      return 'BUSY' .. struct.pack('>d', next_look(lock))
    end
  end
  -- Saved even if the lease does not change: the client waits until replicas have this write.
  confirm(lock, id, claim, lease)
  save(lock, stored)
  return 'HELD' .. struct.pack('>d', claim.token)
end

-- Leaves a tombstone of the claim.
local function entomb(lock, id)
  touch(lock)
  local till, stones = math.ceil(now / TOMB + 1) * TOMB, redis.call('HGET', lock.key, 't')
  local first, number, first_end = 1, 1, till
  if stones then first, number, first_end = struct.unpack(STONES, stones) end
  set(lock, 't', struct.pack(STONES, first, number + 1, first_end))
  set(lock, 't' .. number, struct.pack(STONE, till, id))
  set_claim(lock, id, { state = TOMBSTONE, deadline = till, token = 0, since = now, lease = 2 * TOMB, number = number,
    terms = struct.pack(TERMS, 0, 0, 0, NOBODY) })
  lock.tombstones = lock.tombstones + 1
  expire(lock, till)
end

-- At a node of a quorum: tells the oldest refused claims that the lock may be free, as many as fit beside the holders. They are deleted
-- from the sorted set; a claim that is refused again is added again. A claim whose client no message reaches is passed over. `lock` counts
-- those who are told as holders, and must not be saved after this. A client that is stopped still takes messages and asks for nothing, so
-- one more is told to ask a little later.
local function tell_refused(lock)
  local refused, at = 'redlock:' .. lock.key, 0
  for _ = 1, 100 do
    local entry = (lock.holders == 0 or lock.mode ~= EXCLUSIVE) and at < 16 and redis.call('ZRANGE', refused, at, at)[1]
    if not entry then break end
    local _, told, terms = struct.unpack(REFUSED, entry)
    local mode, permits, of, client = struct.unpack(TERMS, entry, terms)
    local asks = { mode = mode, permits = permits, of = of, client = client }
    if fits(lock, asks) then
      redis.call('ZREM', refused, entry)
      local reached = redis.pcall('PUBLISH', lock.inbox .. client, 'H' .. told)
      if type(reached) == 'number' and reached > 0 then count(lock, told, asks) end
    else
      at = at + 1
    end
  end
  local spare = redis.call('ZRANGE', refused, 0, 0)[1]
  if spare then
    local _, told, terms = struct.unpack(REFUSED, spare)
    local _, _, _, client = struct.unpack(TERMS, spare, terms)
    redis.pcall('PUBLISH', lock.inbox .. client, 'S' .. told)
  end
end

-- Releases a grant, or gives up a position in the queue, and hands the lock on.
-- KEYS[1] the lock. ARGV: 2 the sender, see SENDER in lock.lua; 3 "1" to leave a tombstone, because a request of this claim may still be
-- on its way; 4 at a node of a quorum only: what the node wrote down when it refused the claim, see REFUSED in lock.lua, or empty: it did
-- not, or `-`: an eviction has freed the lock, so the refused are told.
-- Reply: FREE more full: the grant has ended. LEFT more full: waits no more. NONE more full: was not there, or its lease had expired.
--        `more` is 1: renew has work to do. `full` is 1: there is no room for a tombstone, call this again later.
if request == 'leave' then
  local key, tombstone, refusal, status, full = KEYS[1], ARGV[3] == '1', ARGV[4], 'NONE', 0
  local retention, id, in_cluster, prefix = struct.unpack(SENDER, ARGV[2])
  local lock = open(key, inbox_of(key, prefix), in_cluster == 1, retention)
  local claim = read_claim(lock, id)
  if claim and claim.state == TOMBSTONE then claim, tombstone = nil, false end
  if tombstone and lock.tombstones >= TOMBS then tombstone, full = false, 1 end
  if tombstone then
    entomb(lock, id)
  elseif claim then
    del(lock, 'c' .. id)
  end
  if claim and claim.state == WAITS then
    status, lock.waiting = 'LEFT', lock.waiting - 1
    local client = unpack_client(redis.call('HGET', key, 'p' .. claim.client))
    leave_queue(lock, 'w' .. claim.number, claim.client, client)
    lock.clients[claim.client] = client
    -- hand_over reads the queue from the hash, so this is written first.
    touch(lock)
  elseif claim then
    if claim.deadline > now then status = 'FREE' end
    uncount(lock, claim)
  end
  if claim or tombstone or written or lock.waiting > 0 then
    hand_over(lock)
    -- The key of an idle lock stays only for its last token.
    local idle_until = math.floor(math.max(now, lock.token) / 1000) + retention
    local is_idle = lock.holders + lock.waiting + lock.tombstones == 0
    if is_idle and lock.expires > idle_until + retention then lock.expires, lock.moved = idle_until, true end
    save(lock, true)
  end
  -- If the refused claim is not in the sorted set any more, tell_refused has told it to ask. It leaves instead, so the next ones are told.
  if refusal and (status == 'FREE' or refusal ~= '' and redis.call('ZREM', 'redlock:' .. key, refusal) == 0) then tell_refused(lock) end
  return status .. struct.pack('>dd', unfinished(lock), full)
end

-- Renews the leases and the positions in the queue of one client, for many locks of one slot. Continues what
-- another call has left to do.
-- KEYS the locks. ARGV: 2 the client; 3 retention in ms; 4 inbox prefix; 5 "1" in a cluster; then for each lock "1" if the client waits
-- there, the number of claims, and for each claim its id and its lease in µs. Of the claims that wait the client names its oldest: the lock
-- goes to these first, so none that was handed it is missed.
-- Reply: DONE, for each lock ms until another look is worth it or -1, and behind it for each claim its state and a token:
--        HOLDS and its token, for its lease from now on; WAITS and the last token; EVICTED or 0 (it is gone) and 0.
if request == 'renew' then
  local name, retention, inbox, cluster, reply, argument = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5] == '1', { 'DONE' }, 6
  for _, key in ipairs(KEYS) do
    local waits, claims = ARGV[argument] == '1', tonumber(ARGV[argument + 1])
    local lock, fields = open(key, inbox, cluster, retention), {}
    for i = 1, claims do
      local id = ARGV[argument + 2 * i]
      fields[i], lock.asked[id] = 'c' .. id, true
    end
    if waits then
      local stored = redis.call('HGET', key, 'p' .. name)
      if stored then hear(lock, name, stored) end
      hand_over(lock)
      if #lock.sets > 0 or #lock.dels > 0 then save(lock) end
    end
    local states = ''
    for i, record in ipairs(claims > 0 and redis.call('HMGET', key, unpack(fields)) or {}) do
      local claim, state, token = record and unpack_claim(record), 0, 0
      if claim and claim.state == WAITS then
        state, token = WAITS, lock.token
      elseif claim and claim.state == EVICTED then
        state = EVICTED
      elseif holds(claim) then
        if claim.state == HANDED then claim.deadline = 0 end
        confirm(lock, ARGV[argument + 2 * i], claim, tonumber(ARGV[argument + 2 * i + 1]))
        state, token = HOLDS, claim.token
      end
      states = states .. struct.pack('>dd', state, token)
    end
    if #lock.sets > 0 then save(lock, true) end
    reply[#reply + 1] = struct.pack('>d', next_look(lock)) .. states
    argument = argument + 2 + 2 * claims
  end
  return table.concat(reply)
end

-- Replaces the fixed part of a claim's terms; `client` only if it is given.
local function set_terms(claim, mode, permits, of, client)
  local _, _, _, old, text = struct.unpack(TERMS, claim.terms)
  claim.terms = struct.pack(TERMS, mode, permits, of, client or old) .. string.sub(claim.terms, text)
end

-- Makes a shared holder exclusive, or an exclusive one shared: see "Upgrades" in lock.lua. A holder of permits is neither, so the answer to it
-- is GONE, as in take_up to another mode.
-- KEYS[1] the lock. ARGV: 2 the sender, see SENDER in lock.lua; 3 the number of the conversion; 4 "1" for exclusive, else for shared; 5 if
-- exclusive: "1" to mark the claim while others hold the lock, too; if shared: the token that the holder knows.
-- Reply: HELD token: holds exclusively. WAIT look: is marked, and others hold the lock. BUSY look: the same without a mark.
--        ELSE: another holder is marked. DONE more: is shared. GONE: holds no more, holds permits, or a later conversion came first.
--        `look`: ms until another look is worth it, or -1. `more` is 1: renew has work to do.
if request == 'convert' then
  local key, number = KEYS[1], tonumber(ARGV[3])
  local retention, id, in_cluster, prefix = struct.unpack(SENDER, ARGV[2])
  local lock = open(key, inbox_of(key, prefix), in_cluster == 1, retention)
  local claim = read_claim(lock, id)
  if not holds(claim) or claim.mode == PERMITS then return 'GONE' end
  local latest, marked = math.floor(claim.of / 2), is_marked(claim)

  -- Rewrites the terms of the claim for this conversion.
  local function become(mode, of)
    claim.mode = mode
    set_terms(claim, mode, 0, 2 * number + of)
    set_claim(lock, id, claim)
  end

  if ARGV[4] ~= '1' then
    -- A conversion that was made before is not repeated, because a later one may have made the claim exclusive since.
    if number > latest then
      if claim.mode == EXCLUSIVE then unmark(lock) end
      claim.token = tonumber(ARGV[5])
      become(SHARED, 0)
      touch(lock)
      hand_over(lock)
      save(lock, true)
    end
    return 'DONE' .. struct.pack('>d', unfinished(lock))
  end
  if number < latest then return 'GONE' end
  if claim.mode == EXCLUSIVE and not marked then
    -- Saved although nothing changes, because the client waits until replicas have this write.
    save(lock, true)
    return 'HELD' .. struct.pack('>d', claim.token)
  end
  local rival = redis.call('HGET', key, 'u')
  rival = rival and string.sub(rival, 1, 16) ~= id and read_claim(lock, string.sub(rival, 1, 16))
  if holds(rival) and is_marked(rival) then return 'ELSE' end
  if lock.holders == 1 then
    lock.token = math.max(lock.token + 1, now)
    claim.token = lock.token
    lock.marked, lock.mode, lock.owner = false, EXCLUSIVE, struct.pack(OWNER, id, claim.client)
    if marked then del(lock, 'u') end
    become(EXCLUSIVE, 0)
    expire(lock, claim.deadline)
    save(lock, true)
    return 'HELD' .. struct.pack('>d', claim.token)
  end
  if ARGV[5] == '1' then
    if not lock.marked or not marked then
      lock.marked, lock.mode, lock.owner = true, EXCLUSIVE, struct.pack(OWNER, id, claim.client)
      set(lock, 'u', id .. lock.inbox .. claim.client)
      become(EXCLUSIVE, 1)
      save(lock)
    end
    return 'WAIT' .. struct.pack('>d', next_look(lock))
  end
  if marked then
    unmark(lock)
    become(SHARED, 0)
    touch(lock)
    hand_over(lock)
    save(lock, true)
  end
  return 'BUSY' .. struct.pack('>d', next_look(lock))
end

-- Takes up a grant by its id: extends its lease, and notes whose it is from now on. To detach a grant, give it to NOBODY.
-- KEYS[1] the lock. ARGV: 2 the claim's id; 3 the client, or NOBODY, or empty: it stays whose it is; 4 lease in µs; 5 retention in ms; 6 mode; 7 permits; 8 out of how
-- many. Reply: HELD token, or GONE.
if request == 'take_up' then
  local id, client, lease, mode, permits, of = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
  local lock = open(KEYS[1], nil, false, tonumber(ARGV[5]))
  local claim = read_claim(lock, id)
  if not holds(claim) or claim.mode ~= mode or is_marked(claim) then return 'GONE' end
  if mode == PERMITS and (claim.permits ~= permits or claim.of ~= of) then return 'GONE' end
  if client == '' then client = claim.client end
  set_terms(claim, mode, permits, of, client)
  if mode == EXCLUSIVE then lock.owner = struct.pack(OWNER, id, client) end
  if claim.state == HANDED then claim.deadline = 0 end
  confirm(lock, id, claim, lease)
  save(lock, true)
  return 'HELD' .. struct.pack('>d', claim.token)
end

-- Evicts the holder of the grant with a given token, and tells its client.
-- KEYS[1] the lock. ARGV: 2 the token; 3 "1" to free the lock at once, else when the lease has expired; 4 inbox prefix; 5 "1" in a cluster;
-- 6 who evicts and why; 7 where the scan for that grant goes on, at first 0.
-- Reply: DONE. NONE: no grant has that token. MORE cursor: call again with that.
if request == 'evict' then
  local token, at_once, by = tonumber(ARGV[2]), ARGV[3] == '1', ARGV[6]
  local lock = open(KEYS[1], ARGV[4], ARGV[5] == '1', 0)
  local cursor, fields = unpack(redis.call('HSCAN', lock.key, ARGV[7], 'COUNT', SCAN))
  for i = 1, #fields, 2 do
    local claim = string.byte(fields[i]) == KIND_CLAIM and unpack_claim(fields[i + 1])
    if claim and claim.state ~= WAITS and claim.state ~= TOMBSTONE and claim.deadline > now and claim.token == token then
      local _, id = struct.unpack(CLAIM_FIELD, fields[i])
      if at_once then
        del(lock, fields[i])
        uncount(lock, claim)
      else
        if is_marked(claim) then
          set_terms(claim, SHARED, 0, claim.of - 1)
          unmark(lock)
        end
        if claim.state ~= EVICTED then claim.terms = claim.terms .. '\0' .. by end
        -- Of a claim that was HANDED the lock the deadline may be later than its lease.
        claim.state, claim.lease = EVICTED, math.max(claim.lease, claim.deadline - now)
        set_claim(lock, id, claim)
      end
      touch(lock)
      -- Behind the id: the length of the text, and who evicted the claim and why.
      redis.pcall('PUBLISH', lock.inbox .. claim.client, 'E' .. id .. 'N' .. struct.pack('>I2', #by) .. by)
      hand_over(lock)
      save(lock)
      return 'DONE'
    end
  end
  return cursor == '0' and 'NONE' or 'MORE' .. struct.pack('>d', cursor)
end

-- Reads locks as they are, about SCAN fields at most. KEYS the locks. ARGV from 2: where to go on in each, at first 0.
-- Reply: a list: LIST, now in µs, then of each lock that was read the cursor and some fields, or the error of a key that is no hash.
if request == 'read' then
  local list, left = { 'LIST', now }, SCAN
  for i, key in ipairs(KEYS) do
    local got = redis.pcall('HSCAN', key, ARGV[i + 1], 'COUNT', left)
    local cursor, fields = unpack(got)
    list[i + 2], left = got, left - #(fields or {}) / 2
    if left <= 0 or cursor and cursor ~= '0' then break end
  end
  return list
end
