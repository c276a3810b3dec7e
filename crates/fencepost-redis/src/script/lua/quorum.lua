-- What only a node of a quorum needs.

-- The run of the server: its own id, which no file brings back. If the server has been a replica in this run, the second
-- replication id follows, which says whose data it has taken then.
local function run_of_server()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local taken = string.match(redis.call('INFO', 'replication'), 'master_replid2:(%x+)')
  if taken and string.match(taken, '[^0]') then run = run .. taken end
  return run
end

-- A node of a quorum that restarted or lost its data may have forgotten a grant, and grants nothing until the longest lease has expired. Its
-- marker (`redlock:` and the prefix of all keys) has the run of the server that is known to have all its data, until when it stays out,
-- and the longest lease; `max_ttl` is the one that the client knows. Returns until when it stays out. A lock that was granted in this run
-- needs no look at the marker, unless a client knows of another longest lease.
-- INFO tells the run, and takes long. A client has asked for it over the connection that this request came by, and names it only there: no
-- connection outlives a restart, and the server says over it (CLIENT TRACKING) when its data is replaced, before it says anything else.
-- `write` is redis.call, or a function that does not fail on a full server.
local function stay_out(prefix, max_ttl, named_run, write)
  local marker, named = 'redlock:' .. prefix, string.match(named_run, '^%x+')
  local marked_run, marked_until, marked_longest = unpack(redis.call('HMGET', marker, 'run', 'until', 'ttl'))
  local out_until, noted = tonumber(marked_until or '0'), tonumber(marked_longest or '0')
  local longest = math.max(max_ttl, noted)
  if not named or named ~= marked_run then named = run_of_server() end
  if named ~= marked_run then
    out_until = now + longest * 1000
  elseif longest > noted and out_until > 0 then
    -- A grant that was forgotten may last as long as that.
    out_until = out_until + (longest - noted) * 1000
  end
  -- A clock that was set back keeps the node out no longer than a restart does.
  local bounded = math.min(out_until, now + longest * 1000)
  if named ~= marked_run or longest > noted or bounded < out_until then
    write('HSET', marker, 'run', named, 'until', string.format('%.0f', bounded), 'ttl', longest)
  end
  return bounded
end

-- Asks for the node's vote, or asks again: a grant of this node, if the claim fits beside the holders. Asking again changes nothing but the
-- lease. Nobody is queued at a node: a claim that waits is written down as refused, see REFUSED in lock.lua.
-- KEYS[1] the lock. ARGV: 2 the request, see REQUEST in lock.lua; 3 the token that the quorum proposes, or 0; 4 the longest lease in ms;
-- 5 when the claim was made in µs, or 0: it does not wait; 6 "1": this node has refused it before; 7 the run of the server, `/` and the
-- longest lease, or nothing, see stay_out.
-- Reply: HELD token: holds. BUSY look: does not hold. GONE: has left, was evicted, or its lease has expired. AWAY ms: this node stays out
-- for so long. `look`: ms until another look is worth it, or -1.
if request == 'vote' then
  local key, named_run, made = KEYS[1], ARGV[7], tonumber(ARGV[5])
  local _, lease, retention, id, in_cluster, prefix, terms = struct.unpack(REQUEST, ARGV[2])
  local mode, permits, of, client = struct.unpack(TERMS, ARGV[2], terms)
  local refused, refusal = 'redlock:' .. key, struct.pack(REFUSED, made, id) .. string.sub(ARGV[2], terms)
  if not known or last_run ~= named_run then
    local bounded = stay_out(string.sub(key, 1, prefix), tonumber(ARGV[4]), named_run, redis.call)
    if bounded > now then return 'AWAY' .. struct.pack('>d', math.ceil((bounded - now) / 1000)) end
  end
  local lock = open(key, inbox_of(key, prefix), in_cluster == 1, retention)
  local stored = read_claim(lock, id)
  local claim = stored
  if stored then
    -- A claim whose lease has expired is still there if no scan has found it yet.
    if stored.state ~= HOLDS or stored.deadline <= now then return 'GONE' end
  elseif lock.waiting == 0 and fits(lock, { mode = mode, permits = permits, of = of }) then
    -- A proposal that is far from the server's clock does not count.
    local proposal = tonumber(ARGV[3])
    if proposal <= lock.token or math.abs(proposal - now) > 1000000 then proposal = math.max(lock.token + 1, now) end
    lock.token = proposal
    claim = { state = HOLDS, deadline = 0, token = lock.token, since = now, lease = lease, number = 0, mode = mode, permits = permits,
      of = of, client = client, terms = string.sub(ARGV[2], terms) }
    count(lock, id, claim)
  else
    if made > 0 then
      redis.call('ZADD', refused, made, refusal)
      -- A claim that still waits asks again by then.
      redis.call('PEXPIRE', refused, 5000)
    end
    return 'BUSY' .. struct.pack('>d', next_look(lock))
  end
  if named_run ~= '' and last_run ~= named_run then set(lock, 'e', named_run) end
  -- Saved even if the lease does not change: the client waits until replicas have this write.
  confirm(lock, id, claim, lease)
  save(lock, stored)
  if ARGV[6] == '1' then redis.call('ZREM', refused, refusal) end
  return 'HELD' .. struct.pack('>d', claim.token)
end

-- Gives a grant of a node of a quorum a greater token.
-- KEYS[1] the lock. ARGV: 2 the claim's id; 3 the token; 4 retention in ms; 5 "1": the quorum gave the claim this token before, and this
-- node has voted for it again. Then the token may be smaller than the lock's last one, if nobody else holds the lock.
-- Reply: DONE. NONE: the claim holds it no more, or another claim was given a token as great.
if request == 'raise' then
  local id, token = ARGV[2], tonumber(ARGV[3])
  local lock = open(KEYS[1], nil, false, tonumber(ARGV[4]))
  local claim = read_claim(lock, id)
  if not claim or claim.state ~= HOLDS or claim.deadline <= now then return 'NONE' end
  if claim.token == token then return 'DONE' end
  if token <= lock.token and (ARGV[5] ~= '1' or lock.holders > 1) then return 'NONE' end
  claim.token, lock.token = token, math.max(lock.token, token)
  set_claim(lock, id, claim)
  expire(lock, claim.deadline)
  save(lock, true)
  return 'DONE'
end

-- Vouches for a node of a quorum: it has lost nothing, or nobody holds anything.
-- KEYS[1] the marker, see stay_out. ARGV: 2 the longest lease in ms. Reply: DONE.
if request == 'vouch' then
  redis.call('HSET', KEYS[1], 'run', run_of_server(), 'until', 0, 'ttl', ARGV[2])
  return 'DONE'
end

-- Tells whether a node of a quorum votes, or may have forgotten a grant. From the first such request on it stays out for the longest lease,
-- because nobody may ask for its vote. Whoever looks grants nothing, so his longest lease counts only where no other one is noted.
-- KEYS[1] the marker, see stay_out. ARGV: 2 the longest lease in ms.
-- Reply: DONE, or AWAY ms: it stays out for so long, or the error of a server that cannot note that.
if request == 'votes' then
  local failed
  local function write(...)
    local reply = redis.pcall(...)
    if type(reply) == 'table' and reply.err then failed = reply end
  end
  local longest = redis.call('HGET', KEYS[1], 'ttl') or ARGV[2]
  local bounded = stay_out(string.sub(KEYS[1], #'redlock:' + 1), tonumber(longest), '', write)
  if bounded <= now then return 'DONE' end
  return failed or 'AWAY' .. struct.pack('>d', math.ceil((bounded - now) / 1000))
end

-- Reads whom a node of a quorum has refused. KEYS the sorted sets of several locks, see field e in lock.lua. ARGV: 2 inbox prefix.
-- Reply: a list: LIST, now in µs, then for each key a list of the refused whose clients are there, see REFUSED in lock.lua.
if request == 'refused' then
  local list = { 'LIST', now }
  for i, key in ipairs(KEYS) do
    local there = {}
    for _, entry in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      local _, _, terms = struct.unpack(REFUSED, entry)
      local _, _, _, client = struct.unpack(TERMS, entry, terms)
      local _, subscribers = unpack(redis.call('PUBSUB', 'NUMSUB', ARGV[2] .. client))
      if subscribers > 0 then there[#there + 1] = entry end
    end
    list[i + 2] = there
  end
  return list
end
