-- As a node of a quorum: before scripts/front.lua and enter.lua, which become the function `enter`, and scripts/refused.lua. A claim
-- that has a vote is granted on the spot or left out.
--
-- ARGV beyond those of front.lua: 3 three doubles and a byte: the token that the quorum proposes or 0, the longest lease in ms,
-- when the claim was made, in µs, or 0: it does not wait, and 1: it was refused here before; 4 the run of this server, `/` and the
-- longest lease, or nothing. Answers as front.lua does, or {9, ms}: this node stays out for so long. Fields of the hash beyond
-- those of the line:
--   e        4 of the vote that was granted here last and had one
--   r        somebody was refused, see refused.lua
--
-- Invariants: a node whose marker is absent or names another run of the server restarted or lost data: it may have forgotten a
-- grant, so it grants nothing until the longest lease is over. The run id is the server's own, which no file brings back. A lock
-- that is here, and was granted in this run, has been forgotten by nobody: its node need not be asked for the marker, unless a
-- client comes that knows of another longest lease.
-- A proposal is taken if it is above every token given and within a second of the server's clock.
--
-- INFO tells the run id, and takes long. A client has asked for it over the very connection that this came by, and names it only
-- there: no connection outlives the run that it has met. Whoever has another connection, or none yet, names none.
wish = struct.unpack('>d', ARGV[3])
if wish > now + 1000000 or wish < now - 1000000 then wish = 0 end
local got = redis.call('HMGET', KEYS[1], 's', 'e')
local s, named = got[1], ARGV[4]
-- What happens nearly always: nobody holds it, or has for long.
if s and got[2] == named then
  if #s == 25 and string.byte(ARGV[1], 17) == 1 then
    local who, _, retention, ttl = ARGV[1], struct.unpack('>Bdd', ARGV[2])
    if string.byte(ARGV[3], 25) == 1 then redis.call('ZREM', 'redlock:' .. KEYS[1], string.sub(ARGV[3], 17, 24) .. who) end
    -- include grant
  end
else
  local marker, run = 'redlock:' .. string.sub(ARGV[2], 18, -2), string.match(named, '^%x+')
  local mark = redis.call('HMGET', marker, 'run', 'until', 'ttl')
  local back, known = tonumber(mark[2] or '0'), tonumber(mark[3] or '0')
  local longest = math.max(struct.unpack('>d', ARGV[3], 9), known)
  if not run or run ~= mark[1] then run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') end
  if run ~= mark[1] then
    back = now + longest * 1000
  elseif longest > known and back > 0 then
    -- What may have been forgotten may have been as long as that.
    back = back + (longest - known) * 1000
  end
  if run ~= mark[1] or longest > known then
    redis.call('HSET', marker, 'run', run, 'until', string.format('%.0f', back), 'ttl', longest)
  end
  if back > now then return { 9, math.ceil((back - now) / 1000) } end
end
