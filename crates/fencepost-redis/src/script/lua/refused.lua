-- As a node of a quorum: behind lua/front.lua and enter.lua, which are the function `enter` here. It writes down each claim that is refused.
--
-- The refused of a lock are a key beside it, `redlock:` and then the lock's: a sorted set, the oldest claim first, each since when,
-- its id, mode, permits, process and text.
-- Answers as vote.lua does; {3, ahead} is followed by the ms until the first lease here ends, or -1.
local answer, refused = enter(), 'redlock:' .. key
local entry = string.sub(rest, 17, 24) .. string.sub(who, 18, 33) .. string.sub(who, 36)
if type(answer) ~= 'table' then
  if named ~= '' and got[2] ~= named then redis.call('HSET', key, 'e', named) end
  if string.byte(rest, 25) == 1 then redis.call('ZREM', refused, entry) end
elseif answer[1] == 3 then
  answer[3] = mind > now and math.ceil((mind - now) / 1000) or answer[3] or -1
  local since = struct.unpack('>d', rest, 17)
  if since > 0 then
    -- The holder's release is to tell of it: no HDEL, but a script.
    if lone and string.byte(lone) == 4 then
      redis.call('HDEL', key, 'l' .. string.sub(lone, 51, 66))
      redis.call('HSET', key, 's', '\3' .. string.sub(lone, 2))
    end
    redis.call('ZADD', refused, since, entry)
    -- A claim that still waits asks again by then.
    redis.call('PEXPIRE', refused, 5000)
    redis.call('HSET', key, 'r', 1)
  end
end
return answer
