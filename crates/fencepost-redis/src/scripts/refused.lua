-- As a node of a quorum: behind scripts/enter.lua, which is the function `enter` here. Who is refused is written down.
--
-- KEYS[2] the refused of this lock: a sorted set, the oldest claim first, each its id, since when, mode, permits, process and text.
-- ARGV beyond those of vote.lua: 7 when the claim was made, in µs, or 0: it does not wait; 8 "1": it was refused here before.
-- Answers as vote.lua does; {3, ahead} is followed by the ms until the first lease here ends, or -1.
local answer = enter()
if type(answer) ~= 'table' then
  if got[2] ~= run then redis.call('HSET', key, 'e', run) end
  if ARGV[8] == '1' then redis.call('ZREM', KEYS[2], ARGV[1] .. struct.pack('>d', ARGV[7]) .. ARGV[3]) end
elseif answer[1] == 3 then
  answer[3] = mind > now and math.ceil((mind - now) / 1000) or -1
  if ARGV[7] ~= '0' then
    redis.call('ZADD', KEYS[2], ARGV[7], ARGV[1] .. struct.pack('>d', ARGV[7]) .. ARGV[3])
    -- Whoever still waits asks again by then.
    redis.call('PEXPIRE', KEYS[2], 5000)
    redis.call('HSET', key, 'r', 1)
  end
end
return answer
