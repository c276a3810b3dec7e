-- Reads a record, see records.rs. Returns the time in µs, the record's version, its text, and until when it is kept, in µs.
local time = redis.call('TIME')
local version, text, till = unpack(redis.call('HMGET', KEYS[1], 'version', 'record', 'until'))
return {time[1] * 1000000 + time[2], version, text, till}
