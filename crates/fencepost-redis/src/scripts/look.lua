-- Reads locks as they stand. KEYS the locks. Answers {now in µs, the fields of each, or the error of a key that is no hash}.
local answer = { now }
for i = 1, #KEYS do answer[i + 1] = redis.pcall('HGETALL', KEYS[i]) end
return answer
