-- Reads who was refused. KEYS of several locks, see refused.lua. ARGV: 1 inbox prefix. Answers {now in µs, the refused of each
-- whose processes are there}.
local clock = redis.call('TIME')
local answer = { clock[1] * 1000000 + clock[2] }
for i = 1, #KEYS do
  local there = {}
  for _, one in ipairs(redis.call('ZRANGE', KEYS[i], 0, -1)) do
    if redis.call('PUBSUB', 'NUMSUB', ARGV[1] .. string.sub(one, 34, 49))[2] > 0 then there[#there + 1] = one end
  end
  answer[i + 1] = there
end
return answer
