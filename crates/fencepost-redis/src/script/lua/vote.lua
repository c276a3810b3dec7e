-- Asks a node of a quorum for its vote, or asks again: a grant of this node, if the claim fits beside the holders. Asking again changes
-- nothing but the lease. Nobody waits in line at a node: a claim that waits is written down as refused, see REFUSED in layout.lua.
-- KEYS[1] the lock. ARGV: 1 the request, see REQUEST in layout.lua; 2 the token that the quorum proposes, or 0; 3 the longest lease in ms;
-- 4 when the claim was made in µs, or 0: it does not wait; 5 "1": this node has refused it before; 6 the run of the server, `/` and the
-- longest lease, or nothing, see stay_out.lua.
-- Reply: HDEL token: holds, and HDEL releases it. HELD token: holds. BUSY again: does not hold. GONE: has left,
--        was evicted, or its lease is over. AWAY ms: this node stays out for so long. `again`: ms until another look is worth it, or -1.
-- include layout
local _, lease, retention, id, _, prefix, terms = struct.unpack(REQUEST, ARGV[1])
local mode, permits, of = struct.unpack(TERMS, ARGV[1], terms)
local named_run, made, refused_key = ARGV[6], tonumber(ARGV[4]), 'redlock:' .. key
local refusal = struct.pack(REFUSED, made, id) .. string.sub(ARGV[1], terms)
local summary, last_run, has_refused = unpack(redis.call('HMGET', key, 's', 'e', 'r'))
if not summary or last_run ~= named_run then
  local max_ttl = tonumber(ARGV[3])
  -- include stay_out
  if bounded > now then return 'AWAY' .. struct.pack('>d', math.ceil((bounded - now) / 1000)) end
end
-- A proposal that is far from the server's clock does not count.
local proposal, status = tonumber(ARGV[2]), 'HELD'
if math.abs(proposal - now) > 1000000 then proposal = 0 end
-- include idle
if form ~= FULL_FORM and not lone and mode == EXCLUSIVE then
  -- Nobody holds the lock.
  token = proposal > token and proposal or math.max(token + 1, now)
  local moved = expiry(expires, now + lease, token, retention)
  -- Those who were refused are told of the release: HDEL does not do that.
  local hdel = summary and last_run == named_run and not has_refused
  summary = struct.pack(IDLE_SUMMARY, hdel and HDEL_FORM or IDLE_FORM, now, token, moved, number) .. ARGV[1]
  if hdel then redis.call('HSET', key, 's', summary, 'l' .. id, '') else redis.call('HSET', key, 's', summary) end
  if moved > expires then redis.call('PEXPIREAT', key, moved) end
  if hdel then status = 'HDEL' end
else
  -- include open, change
  if not lone or lone.id == id or late then
    -- include clear
  end
  local own_field = 'c' .. id
  local record = redis.call('HGET', key, own_field)
  local known = record and unpack_claim(record)
  local claim = known
  if known then
    -- One whose lease is over is still there if no scan has found it yet.
    if known.state ~= HOLDS or known.deadline <= now then return 'GONE' end
  elseif lock.waiting == 0 and fits(lock, { mode = mode, permits = permits, of = of }) then
    lock.token = proposal > lock.token and proposal or math.max(lock.token + 1, now)
    claim = { state = HOLDS, deadline = 0, token = lock.token, since = now, lease = lease, number = 0, mode = mode, permits = permits,
      of = of, terms = string.sub(ARGV[1], terms) }
    count(lock, claim, 1)
  else
    if made > 0 then
      if lock.lone and lone.form == HDEL_FORM then
        -- The release is to tell this claim: it must be a script.
        del('l' .. lone.id)
        lone.form = IDLE_FORM
        save(lock)
      end
      redis.call('ZADD', refused_key, made, refusal)
      -- A claim that still waits asks again by then.
      redis.call('PEXPIRE', refused_key, 5000)
      redis.call('HSET', key, 'r', 1)
    end
    return 'BUSY' .. struct.pack('>d', next_look(lock))
  end
  -- Saved even if the lease does not change: the client waits until replicas have this write.
  confirm(lock, own_field, claim, lease, retention)
  save(lock, known)
  token = claim.token
end
if named_run ~= '' and last_run ~= named_run then redis.call('HSET', key, 'e', named_run) end
if ARGV[5] == '1' then redis.call('ZREM', refused_key, refusal) end
return status .. struct.pack('>d', token)
