-- Writes a record, see records.rs: ARGV has the version that is replaced, the new one, the text, and for how many µs it is kept. Without a
-- text it is deleted. A request that is repeated after a lost reply finds its own version. Returns whether the record is as it was asked for.
local version = redis.call('HGET', KEYS[1], 'version') or '0'
if ARGV[3] == '' then
  if version ~= '0' and version ~= ARGV[1] then return 0 end
  redis.call('HDEL', KEYS[1], 'version', 'record', 'until')
  return 1
end
if version == ARGV[2] then return 1 end
if version ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local till = time[1] * 1000000 + time[2] + ARGV[4]
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'record', ARGV[3], 'until', string.format('%.0f', till))
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil(till / 1000)))
return 1
