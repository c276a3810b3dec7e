-- As a node of a quorum: before lua/front.lua and enter.lua, which become the function `enter`, and lua/refused.lua. A claim
-- that has a vote is granted on the spot or left out.
--
-- ARGV: 1 as front.lua's; 2 '>dddB': the token that the quorum proposes or 0, the longest lease in ms, when the claim was made, in µs,
-- or 0: it does not wait, and 1: it was refused here before; then the name of the run: that of the server, `/` and the longest lease, or
-- nothing.
-- Answers as front.lua does, or {9, ms}: this node stays out for so long.
-- Fields of the hash beyond those of the line:
--   e        the name of the run in the vote that was granted here last and had one
--   r        somebody was refused, see refused.lua
-- The field `l<id>`, see head.lua, is there only while nobody was refused and written down.
--
-- Invariants: a node whose marker is absent or names another run of the server, see run.lua, restarted or lost data: it may have
-- forgotten a grant, so it grants nothing until the longest lease is over. A lock that is here, and was granted in this run, has been
-- forgotten by nobody: its node need not be asked for the marker, unless a client comes that knows of another longest lease.
-- A proposal is taken if it is above every token given and within a second of the server's clock.
--
-- INFO tells the run, and takes long. A client has asked for it over the very connection that this came by, and names it only
-- there: no connection outlives a restart, and when all data is replaced the server says so over the connection (CLIENT TRACKING) before
-- anything else. The client then closes it, and ignores each answer that comes later. A client with another connection, or none yet, names
-- no run.
local call, read = redis.call, struct.unpack
local name, who, rest = KEYS[1], ARGV[1], ARGV[2]
local how, ttl, retention = read('>Bdd', who)
wish = read('>d', rest)
if wish > now + 1000000 or wish < now - 1000000 then wish = 0 end
local got = call('HMGET', name, 's', 'e')
local s, named = got[1], string.sub(rest, 26)
-- The usual case: nobody holds the lock, and nobody has held it for long.
if s and got[2] == named then
  if how < 4 and (#s == 33 or string.byte(s) == 4) and call('HLEN', name) == 2 then
    if string.byte(rest, 25) == 1 then
      call('ZREM', 'redlock:' .. name, string.sub(rest, 17, 24) .. string.sub(who, 18, 33) .. string.sub(who, 36))
    end
    -- include grant
  end
else
  local marker, own = 'redlock:' .. string.sub(name, 1, string.byte(who, 35)), string.match(named, '^%x+')
  local mark = redis.call('HMGET', marker, 'run', 'until', 'ttl')
  local back, known = tonumber(mark[2] or '0'), tonumber(mark[3] or '0')
  local longest = math.max(read('>d', rest, 9), known)
  if not own or own ~= mark[1] then
    -- include run
    own = run
  end
  if own ~= mark[1] then
    back = now + longest * 1000
  elseif longest > known and back > 0 then
    -- A grant that was forgotten may last as long as that.
    back = back + (longest - known) * 1000
  end
  -- A clock that was set back makes it stay out no longer than a restart does.
  local least = math.min(back, now + longest * 1000)
  if own ~= mark[1] or longest > known or least < back then
    back = least
    redis.call('HSET', marker, 'run', own, 'until', string.format('%.0f', back), 'ttl', longest)
  end
  if back > now then return { 9, math.ceil((back - now) / 1000) } end
end
voting = true
