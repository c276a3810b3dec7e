-- Evicts the holder whose grant has a token, and tells its process.
--
-- KEYS[1] the lock. ARGV: 1 token, 2 "1" to free the lock at once, 3 retention in ms, 4 inbox prefix, 5 "1" in a cluster, 6 who evicts and why.
-- 7 where a scan for that grant goes on, at first 0. Answers 1, or 0: no grant has that token. Or the cursor with which to call again, since
-- one call reads a part of a large hash. A holder has a field of its own from the first call on, so that a scan comes to it.
-- include line
local s = redis.call('HGET', KEYS[1], 's')
if not s then return 0 end
open(KEYS[1], s)
purge()
local batch = redis.call('HSCAN', key, ARGV[7], 'COUNT', SCAN)
local wanted, all = tonumber(ARGV[1]), batch[2]
for i = 1, #all, 2 do
  local field, value = all[i], all[i + 1]
  if string.byte(field) == 99 then
    local state, deadline, tok, since, ttl, seq, mode, n, of, proc = record(value)
    if tok == wanted and state > 1 and state < 5 and deadline > now then
      if ARGV[2] == '1' then
        del(field)
        remove(mode, n)
      else
        -- Handed to it and not confirmed, it may be longer than its lease.
        local evicted = struct.pack(DYN, 4, deadline, tok, since, math.max(ttl, deadline - now), seq)
        if state == 4 then set(field, evicted .. string.sub(value, 42)) else
          set(field, evicted .. string.sub(value, 42) .. '\0' .. ARGV[6])
        end
      end
      touch()
      -- Other versions read no further than the id.
      local by = 'N' .. struct.pack('>I2', #ARGV[6]) .. ARGV[6]
      redis.pcall('PUBLISH', ARGV[4] .. proc, 'E' .. string.sub(field, 2) .. by)
      if nw > 0 and x == 0 then tend(ARGV[4], ARGV[5] == '1') end
      save()
      return 1
    end
  end
end
return batch[1] ~= '0' and batch[1] or 0
