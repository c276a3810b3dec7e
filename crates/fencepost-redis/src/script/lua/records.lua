-- Records beside the locks, see records.rs. KEYS[1] the record. ARGV: 2 the longest lease in ms, at a node of a quorum, else nothing; 3 the
-- length of the prefix of all keys.

-- A node that may have forgotten a record has no say until each such record has expired: clients keep no record at a node for longer than
-- the longest lease and 10 s (BEYOND in records.rs). Returns the reply AWAY ms then.
local function stay_out_of_records()
  if ARGV[2] == '' then return end
  local bounded = stay_out(string.sub(KEYS[1], 1, tonumber(ARGV[3])), tonumber(ARGV[2]), '', redis.call) + 10000000
  if bounded > now then return 'AWAY' .. struct.pack('>d', math.ceil((bounded - now) / 1000)) end
end

-- Reads a record. Reply: the time in µs, the record's version, its text, and until when it is kept, in µs.
if request == 'read_record' then
  local away = stay_out_of_records()
  if away then return away end
  local version, text, till = unpack(redis.call('HMGET', KEYS[1], 'version', 'record', 'until'))
  return { now, version, text, till }
end

-- Writes a record. ARGV: 4 the version that is replaced; 5 the new one; 6 the text; 7 for how many µs it is kept. Without a text it is
-- deleted. A request that is repeated after a lost reply finds its own version, and writes it again, because the client waits until replicas
-- have this write. A deletion that is repeated writes nothing, so replicas may still have the record. Reply: whether the record is as it was
-- asked for.
if request == 'write_record' then
  local key, old, new, text = KEYS[1], ARGV[4], ARGV[5], ARGV[6]
  local away = stay_out_of_records()
  if away then return away end
  local version = redis.call('HGET', key, 'version') or '0'
  if text == '' then
    if version ~= '0' and version ~= old then return 0 end
    redis.call('HDEL', key, 'version', 'record', 'until')
    return 1
  end
  if version ~= old and version ~= new then return 0 end
  local till = now + ARGV[7]
  local expiry = string.format('%.0f', math.ceil(till / 1000))
  -- A full server allows what follows a PEXPIREAT. So the end of a run can be noted there, but no new record is made.
  if version ~= '0' then redis.call('PEXPIREAT', key, expiry) end
  redis.call('HSET', key, 'version', new, 'record', text, 'until', string.format('%.0f', till))
  if version == '0' then redis.call('PEXPIREAT', key, expiry) end
  return 1
end
