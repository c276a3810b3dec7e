-- As a node of a quorum: before scripts/enter.lua, which becomes the function `enter`, and scripts/refused.lua. A claim that has a
-- vote is granted on the spot or left out.
--
-- ARGV beyond those of enter.lua: 4 the token that the quorum proposes or 0, 5 the deployment's marker, 6 the longest lease in
-- ms. Answers as enter.lua does, or {9, ms}: this node stays out for so long. Fields of the hash beyond those of the line:
--   e        the run of the server in which a vote was granted here last
--   r        somebody was refused, see refused.lua
--
-- Invariants: a node whose marker is absent or names another run of the server restarted or lost data: it may have forgotten a
-- grant, so it grants nothing until the longest lease is over. The run id is the server's own, which no file brings back. A lock
-- that is here, and was granted in this run, has been forgotten by nobody: its node need not be asked for the marker.
-- A proposal is taken if it is above every token given and within a second of the server's clock.
--
-- INFO tells the run id, and takes long. Each connection of a client listens to a channel that is named after the run it has met:
-- somebody listens to a run's channel only if this is that run, since no subscription outlives the server.
wish = tonumber(ARGV[4])
if math.abs(wish - now) > 1000000 then wish = 0 end
local got = redis.call('HMGET', key, 's', 'e')
local s, run = got[1], got[2]
-- What happens nearly always: nobody holds it, or has for long.
local runs = string.sub(ARGV[2], 18) .. 'run:'
if s and run and redis.call('PUBSUB', 'NUMSUB', runs .. run)[2] > 0 then
  if #s == 25 and string.byte(ARGV[3]) == 1 then
    local _, retention, ttl = struct.unpack('>Bdd', ARGV[2])
    -- include grant
    if ARGV[8] == '1' then redis.call('ZREM', KEYS[2], ARGV[1] .. struct.pack('>d', ARGV[7]) .. ARGV[3]) end
    return last
  end
else
  local mark = redis.call('HMGET', ARGV[5], 'run', 'until', 'ttl')
  local back, longest = tonumber(mark[2] or '0'), math.max(tonumber(ARGV[6]), tonumber(mark[3] or '0'))
  run = mark[1]
  if not run or redis.call('PUBSUB', 'NUMSUB', runs .. run)[2] == 0 then
    run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
    if run ~= mark[1] then
      back = now + longest * 1000
      redis.call('HSET', ARGV[5], 'run', run, 'until', string.format('%.0f', back), 'ttl', longest)
    end
  end
  if mark[3] and longest > tonumber(mark[3]) then redis.call('HSET', ARGV[5], 'ttl', longest) end
  if back > now then return { 9, math.ceil((back - now) / 1000) } end
end
