-- The short path: grants a free lock to an exclusive claim, and releases the lone exclusive grant of a lock that nobody waits for. Most calls
-- do one of these. They are answered here, before any function is made, because making the functions costs the server more than the work.
-- The other parts would write the same fields and give the same reply, which free.rs in the tests compares. In all other cases they answer,
-- and nothing has been written before: another mode, a tombstone, other holders, waiters, or a lease that has expired; and at a node of a
-- quorum if it may have lost a grant, or has refused a claim that is to be told or forgotten now.

-- What was read of the lock here, else nil: the summary, and at a node of a quorum the run of its last vote, see field e in lock.lua.
local known, last_run
if request == 'enter' or request == 'leave' and ARGV[3] ~= '1' then
  known = redis.call('HGET', KEYS[1], 's')
elseif request == 'vote' then
  known, last_run = unpack(redis.call('HMGET', KEYS[1], 's', 'e'))
end
local summary = known == false and struct.pack(SUMMARY, FORM, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0) or known
if summary and string.byte(summary) == FORM then
  local key = KEYS[1]
  local _, exclusive, shared, of_permits, _, earliest, _, token, expires, _, number, waiting, tombstones, owner =
    struct.unpack(SUMMARY, summary)
  local simple = shared + of_permits + waiting + tombstones == 0
  local asks = request == 'enter' or request == 'vote' and last_run == ARGV[7] and ARGV[6] ~= '1'
  if simple and asks and exclusive == 0 then
    -- The lock has no record of this claim, because the summary would count it.
    local _, lease, retention, id, _, _, terms = struct.unpack(REQUEST, ARGV[2])
    local mode, _, _, client = struct.unpack(TERMS, ARGV[2], terms)
    if mode == EXCLUSIVE then
      -- The token that a quorum proposes counts as it does in quorum.lua.
      local proposal = tonumber(ARGV[3] or '0')
      token = proposal > token and math.abs(proposal - now) <= 1000000 and proposal or math.max(token + 1, now)
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
    -- The key of another program there gives an error, which is no empty table.
    local refused = ARGV[4] and next(redis.pcall('ZRANGE', 'redlock:' .. key, 0, 0))
    if not refused and string.sub(summary, owner, owner + 15) == id then
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

