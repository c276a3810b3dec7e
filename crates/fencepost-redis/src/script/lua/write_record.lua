-- Writes a record, see records.rs and beside.lua. ARGV: 3 the version that is replaced; 4 the new one; 5 the text; 6 for how many µs it is
-- kept. Without a text it is deleted. A request that is repeated after a lost reply finds its own version. Returns whether the record is as
-- it was asked for.
-- include beside
local version = redis.call('HGET', key, 'version') or '0'
if ARGV[5] == '' then
  if version ~= '0' and version ~= ARGV[3] then return 0 end
  redis.call('HDEL', key, 'version', 'record', 'until')
  return 1
end
if version == ARGV[4] then return 1 end
if version ~= ARGV[3] then return 0 end
local till = now + ARGV[6]
local expiry = string.format('%.0f', math.ceil(till / 1000))
-- A full server allows what follows a PEXPIREAT. So the end of a run can be noted there, but no new record is made.
if version ~= '0' then redis.call('PEXPIREAT', key, expiry) end
redis.call('HSET', key, 'version', ARGV[4], 'record', ARGV[5], 'until', string.format('%.0f', till))
if version == '0' then redis.call('PEXPIREAT', key, expiry) end
return 1
