-- Reads a record, see records.rs and beside.lua. Returns the time in µs, the record's version, its text, and until when it is kept, in µs.
-- include beside
local version, text, till = unpack(redis.call('HMGET', key, 'version', 'record', 'until'))
return {now, version, text, till}
