-- As a node of a quorum: before scripts/enter.lua, for a claim that has a vote. Such a claim is granted on the spot or left out.
--
-- ARGV beyond those of enter.lua: 9 the token that the quorum proposes or 0, 10 the deployment's marker, 11 the longest lease in
-- ms. Answers as enter.lua does, or {9, ms}: this node stays out for so long.
--
-- Invariants: a node whose marker is absent or names another run of the server restarted or lost data: it may have forgotten a
-- grant, so it grants nothing until the longest lease is over. The run id is the server's own, which no file brings back.
-- A proposal is taken if it is above every token given and within a second of the server's clock.
--
-- INFO tells the run id, and takes longer than all the rest. Each connection of a client listens to a channel that is named after
-- the run it has met: somebody listens to the marker's only if this is that run, since no subscription outlives the server.
local mark = redis.call('HMGET', ARGV[10], 'run', 'until', 'ttl')
local back = tonumber(mark[2] or '0')
if not mark[1] or redis.call('PUBSUB', 'NUMSUB', ARGV[6] .. 'run:' .. mark[1])[2] == 0 then
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  if mark[1] ~= run then
    local longest = math.max(tonumber(ARGV[11]), tonumber(mark[3] or '0'))
    back = now + longest * 1000
    redis.call('HSET', ARGV[10], 'run', run, 'until', string.format('%.0f', back), 'ttl', longest)
  end
end
if back > now then return { 9, math.ceil((back - now) / 1000) } end
wish = tonumber(ARGV[9])
if math.abs(wish - now) > 1000000 then wish = 0 end
