-- What a request for a record needs. ARGV: 1 the longest lease in ms, at a node of a quorum, else nothing; 2 the length of the prefix of all
-- keys. A node that may have forgotten a record has no say until each such record has expired. A record outlives the longest lease by
-- 10 s at most, see records.rs. Reply then: AWAY ms.
local time = redis.call('TIME')
local now, key = time[1] * 1000000 + time[2], KEYS[1]
if ARGV[1] ~= '' then
  local max_ttl, prefix, named_run = tonumber(ARGV[1]), tonumber(ARGV[2]), ''
  -- include stay_out
  bounded = bounded + 10000000
  if bounded > now then return 'AWAY' .. struct.pack('>d', math.ceil((bounded - now) / 1000)) end
end
