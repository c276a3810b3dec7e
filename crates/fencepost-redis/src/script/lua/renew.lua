-- Renews the leases and the places in the line of one process, for many locks of one slot. Goes on where another call had more to do.
-- KEYS the locks. ARGV: 1 the process; 2 retention in ms; 3 inbox prefix; 4 "1" in a cluster; then for each lock "1" if the process waits
-- there, the number of claims, and for each claim its id and its lease in µs. Of claims that wait the oldest are enough: a claim that is
-- handed the lock is one of these.
-- Reply: DONE, for each lock ms until another look is worth it or -1, and behind it for each claim its state and a token:
--        HOLDS and its token, for its lease from now on; WAITS and the last token; EVICTED or 0 (it is gone) and 0.
-- include layout, change
local name, retention, inbox, cluster, reply, argument = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1', { 'DONE' }, 5
for _, key in ipairs(KEYS) do
  local waits, claims = ARGV[argument] == '1', tonumber(ARGV[argument + 1])
  local first_id, first_lease = ARGV[argument + 2], tonumber(ARGV[argument + 3])
  local summary = redis.call('HGET', key, 's')
  -- include idle, open
  if lone and claims == 1 and lone.id == first_id and not waits and not late then
    -- The usual case: no other claim wants the lock.
    lone.deadline = math.max(lone.deadline, now + first_lease)
    lock.earliest = lone.deadline
    expire(lock, lone.deadline, retention)
    save(lock, true)
    reply[#reply + 1] = struct.pack('>ddd', next_look(lock), HOLDS, lock.token)
  else
    -- include clear
    local alive, fields = waits and redis.call('HGET', key, 'p' .. name), {}
    asked = {}
    for i = 1, claims do
      local id = ARGV[argument + 2 * i]
      fields[i], asked[id] = 'c' .. id, true
    end
    if alive then
      touch(lock)
      processes[name] = unpack_process(alive)
      processes[name].alive, processes[name].changed = now + LIVE, true
      expire(lock, now + LIVE, retention)
    end
    if waits then
      -- include hand_over
      if #sets > 0 or #dels > 0 then save(lock) end
    end
    local states = ''
    for i, record in ipairs(claims > 0 and redis.call('HMGET', key, unpack(fields)) or {}) do
      local claim, state, token = record and unpack_claim(record), 0, 0
      if claim and claim.state == WAITS then
        state, token = WAITS, lock.token
      elseif claim and claim.state == EVICTED then
        state = EVICTED
      elseif claim and claim.state ~= TOMBSTONE and claim.deadline > now then
        if claim.state == HANDED then claim.deadline = 0 end
        confirm(lock, fields[i], claim, tonumber(ARGV[argument + 2 * i + 1]), retention)
        state, token = HOLDS, claim.token
      end
      states = states .. struct.pack('>dd', state, token)
    end
    if #sets > 0 then save(lock, true) end
    reply[#reply + 1] = struct.pack('>d', next_look(lock)) .. states
  end
  argument = argument + 2 + 2 * claims
end
return table.concat(reply)
