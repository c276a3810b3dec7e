-- Reads locks as they stand. KEYS the locks. Answers {now in µs, the fields of each}.
local answer = { now }
for i = 1, #KEYS do answer[i + 1] = redis.call('HGETALL', KEYS[i]) end
return answer
