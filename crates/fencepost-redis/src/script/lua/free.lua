-- The short path: grants a free lock to an exclusive claim, and releases the lone exclusive grant of a lock that nobody waits for. Most calls
-- do one of these. They are answered here, before any function is made, because making the functions costs the server more than the work.
-- The other parts would write the same fields and give the same reply, which free.rs in the tests compares. In all other cases they answer,
-- and nothing has been written before: another mode, a tombstone, a request to a node of a quorum, other holders, waiters, or a
-- lease that has expired.

-- The summary of the lock if it was read here, else nil, see `open` in lock.lua.
local known
if request == 'enter' or request == 'leave' and ARGV[3] ~= '1' and not ARGV[4] then known = redis.call('HGET', KEYS[1], 's') end
local summary = known == false and struct.pack(SUMMARY, FORM, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0) or known
if summary and string.byte(summary) == FORM then
  local key = KEYS[1]
  local _, exclusive, shared, of_permits, _, earliest, _, token, expires, _, number, waiting, tombstones, owner =
    struct.unpack(SUMMARY, summary)
  local simple = shared + of_permits + waiting + tombstones == 0
  if simple and request == 'enter' and exclusive == 0 then
    -- The lock has no record of this claim, because the summary would count it.
    local _, lease, retention, id, _, _, terms = struct.unpack(REQUEST, ARGV[2])
    local mode, _, _, client = struct.unpack(TERMS, ARGV[2], terms)
    if mode == EXCLUSIVE then
      token = math.max(token + 1, now)
      local deadline = now + lease
      local need = math.floor(math.max(token, deadline) / 1000) + retention
      local moved = expires < need
      if moved then expires = need + math.floor(retention / 2) end
      redis.call('HSET', key, 'c' .. id, struct.pack(RECORD, HOLDS, deadline, token, now, lease, 0) .. string.sub(ARGV[2], terms),
        's', struct.pack(SUMMARY, FORM, 1, 0, 0, 0, deadline, now, token, expires, number, number, 0, 0) .. id .. client)
      if moved then redis.call('PEXPIREAT', key, expires) end
      return 'HELD' .. struct.pack('>d', token)
    end
  elseif simple and request == 'leave' and earliest > now then
    local retention, id = struct.unpack(SENDER, ARGV[2])
    if string.sub(summary, owner, owner + 15) == id then
      local idle_until = math.floor(math.max(now, token) / 1000) + retention
      local moved = expires > idle_until + retention
      if moved then expires = idle_until end
      -- A marked holder that has become the only one has a field u, too.
      redis.call('HDEL', key, 'c' .. id, 'u')
      redis.call('HSET', key, 's', struct.pack(SUMMARY, FORM, 0, 0, 0, 0, 0, now, token, expires, number, number, 0, 0))
      if moved then redis.call('PEXPIREAT', key, expires) end
      return 'FREE' .. struct.pack('>dd', 0, 0)
    end
  end
end

