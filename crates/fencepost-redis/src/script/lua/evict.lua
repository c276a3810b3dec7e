-- Evicts the holder of the grant with a given token, and tells its process.
-- KEYS[1] the lock. ARGV: 1 the token; 2 "1" to free the lock at once, else when the lease is over; 3 inbox prefix; 4 "1" in a cluster;
-- 5 who evicts and why; 6 where the scan for that grant goes on, at first 0.
-- Reply: DONE. NONE: no grant has that token. MORE cursor: call again with that.
-- include layout
local summary = redis.call('HGET', key, 's')
-- include idle, open, change, clear
local token, at_once, inbox, cluster, by = tonumber(ARGV[1]), ARGV[2] == '1', ARGV[3], ARGV[4] == '1', ARGV[5]
local cursor, fields = unpack(redis.call('HSCAN', key, ARGV[6], 'COUNT', SCAN))
for i = 1, #fields, 2 do
  local field, claim = fields[i], string.byte(fields[i]) == KIND_CLAIM and unpack_claim(fields[i + 1])
  local holds = claim and claim.state ~= WAITS and claim.state ~= TOMBSTONE and claim.deadline > now
  if holds and claim.token == token then
    if at_once then
      del(field)
      count(lock, claim, -1)
    else
      if is_marked(claim) then
        local _, _, _, process, text = struct.unpack(TERMS, claim.terms)
        claim.terms = struct.pack(TERMS, SHARED, 0, claim.of - 1, process) .. string.sub(claim.terms, text)
        unmark(lock)
      end
      if claim.state ~= EVICTED then claim.terms = claim.terms .. '\0' .. by end
      -- Of a claim that was HANDED the lock the deadline may be later than its lease.
      claim.state, claim.lease = EVICTED, math.max(claim.lease, claim.deadline - now)
      set_claim(field, claim)
    end
    touch(lock)
    local _, id = struct.unpack(CLAIM_FIELD, field)
    -- Behind the id: the length of the text, and who evicted the claim and why.
    redis.pcall('PUBLISH', inbox .. claim.process, 'E' .. id .. 'N' .. struct.pack('>I2', #by) .. by)
    -- include hand_over
    save(lock)
    return 'DONE'
  end
end
return cursor == '0' and 'NONE' or 'MORE' .. struct.pack('>d', cursor)
