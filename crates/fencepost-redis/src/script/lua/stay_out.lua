-- A node of a quorum that restarted or lost its data may have forgotten a grant, and grants nothing until the longest lease is over. Its
-- marker (`redlock:` and the prefix of all keys) has the run of the server that is known to have all its data, until when it stays out,
-- and the longest lease; `max_ttl` is the one that the client knows. It stays out until `bounded`. A lock that was granted in this run needs no look at the marker, unless a client knows of another longest lease.
-- INFO tells the run, and takes long. A client has asked for it over the connection that this request came by, and names it only there: no
-- connection outlives a restart, and the server says over it (CLIENT TRACKING) when its data is replaced, before it says anything else.
local marker, named = 'redlock:' .. string.sub(key, 1, prefix), string.match(named_run, '^%x+')
local marked_run, marked_until, marked_longest = unpack(redis.call('HMGET', marker, 'run', 'until', 'ttl'))
local out_until, known = tonumber(marked_until or '0'), tonumber(marked_longest or '0')
local longest = math.max(max_ttl, known)
if not named or named ~= marked_run then
  -- include run
  named = run
end
if named ~= marked_run then
  out_until = now + longest * 1000
elseif longest > known and out_until > 0 then
  -- A grant that was forgotten may last as long as that.
  out_until = out_until + (longest - known) * 1000
end
-- A clock that was set back keeps the node out no longer than a restart does.
local bounded = math.min(out_until, now + longest * 1000)
if named ~= marked_run or longest > known or bounded < out_until then
  redis.call('HSET', marker, 'run', named, 'until', string.format('%.0f', bounded), 'ttl', longest)
end
