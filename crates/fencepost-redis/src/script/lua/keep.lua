-- Renews what a process holds and its places in line, for many locks of one slot at once.
--
-- KEYS the locks. ARGV: 1 process, 2 retention in ms, 3 inbox prefix, 4 "1" in a cluster, then for each lock: "1" if the
-- process waits there, the number of claims that follow, and for each of those its id and its lease in µs. Of claims that
-- wait the oldest are enough: who is handed the lock is always among them.
-- Answers, for each lock: ms until another look is worth it or -1, then two numbers for each claim: 1 and its token: holds, for its lease from
-- now on; 2 and the last token: waits; 4 0: gone; 5 0: evicted.
-- include line
local proc, retention, at, answer = ARGV[1], tonumber(ARGV[2]), 5, {}

for k = 1, #KEYS do
  local waits, count = ARGV[at], tonumber(ARGV[at + 1])
  local fields = { 's' }
  for i = 1, count do fields[i + 1] = 'c' .. ARGV[at + 2 * i] end
  if count == 1 then fields[3] = 'l' .. ARGV[at + 2] end
  local got = redis.call('HMGET', KEYS[k], unpack(fields))
  local s, deadline = got[1], 0
  -- The usual case: the lock was idle before, and no other claim wants it.
  local form = s and count == 1 and waits ~= '1' and string.byte(s) or 0
  if form > 2 and string.sub(s, 51, 66) == ARGV[at + 2] and (form == 3 or got[3]) then
    local since, length, how
    _, since, last, exp, tail, how, length = struct.unpack('>BddddBd', s)
    deadline = since + length
    -- Neither over, nor drawn out by a clock that was set back.
    if deadline > now and since <= now then
      local ttl = tonumber(ARGV[at + 3])
      key, move, deadline = KEYS[k], false, math.max(deadline, now + ttl)
      expire(deadline, retention)
      touch()
      local held = struct.pack('>BddddBd', form, now, last, exp, tail, how, deadline - now)
      redis.call('HSET', key, 's', held .. string.sub(s, 43))
      if move then redis.call('PEXPIREAT', key, exp) end
      answer[#answer + 1] = math.ceil((deadline - now) / 1000)
      answer[#answer + 1], answer[#answer + 2] = 1, last
    else
      deadline = 0
    end
  end
  if s and deadline == 0 then
    open(KEYS[k], s)
    local changed, heard, more = purge(), false, false
    if waits == '1' then
      local p = redis.call('HGET', key, 'p' .. proc)
      if p then
        local _, places = struct.unpack(PROC, p)
        touch()
        redis.call('HSET', key, 'p' .. proc, struct.pack(PROC, now + LIVE, places))
        heard = true
      end
      if x == 0 and nw > 0 then
        _, more = tend(ARGV[3], ARGV[4] == '1')
        save()
        changed = true
      end
    end
    if changed then got = redis.call('HMGET', key, unpack(fields)) end
    local longest = now + LIVE
    answer[#answer + 1] = 0
    local place = #answer
    for i = 1, count do
      local rec, ttl = got[i + 1], tonumber(ARGV[at + 2 * i + 1])
      local state, tok = 4, 0
      if rec then
        local deadline, since, seq, _
        state, deadline, tok, since, _, seq = record(rec)
        if state == 1 then
          state, tok = 2, last
        elseif state == 4 then
          state, tok = 5, 0
        elseif state == 5 or deadline <= now then
          state, tok = 4, 0
        else
          deadline = math.max(state == 2 and 0 or deadline, now + ttl)
          longest = math.max(longest, deadline)
          due(deadline)
          local length = math.max(ttl, deadline - now)
          set(fields[i + 1], struct.pack(DYN, 3, deadline, tok, since, length, seq) .. string.sub(rec, 42))
          state = 1
        end
      end
      answer[#answer + 1], answer[#answer + 2] = state, tok
    end
    expire(longest, retention)
    -- The time that was saved last shows whether the clock was set back.
    if #sets > 0 or move or heard then
      touch()
      save()
    end
    answer[place] = mind > now and not more and math.ceil((mind - now) / 1000) or (more or mind > 0) and 0 or -1
  elseif not s then
    answer[#answer + 1] = -1
    for _ = 1, count do answer[#answer + 1], answer[#answer + 2] = 4, 0 end
  end
  at = at + 2 + 2 * count
end
return answer
