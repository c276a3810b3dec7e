-- Gives a lone holder a record. Clears away tombstones and dead holders, and shortens what a clock set back would lengthen. Scans only
-- a late lock, and a part of a large one: its earliest deadline stays in the past then, and the next call goes on. Saves at once,
-- before the rest of the script: a summary that counts a claim which is gone would keep the lock held for good.
if lock.lone then
  del('l' .. lock.lone.id)
  set_claim('c' .. lock.lone.id, lock.lone)
  lock.lone = false
  save(lock, true)
end

local stones, first, after, first_end = lock.tombstones > 0 and redis.call('HGET', lock.key, 't'), 0, 0, now + 1
if stones then first, after, first_end = struct.unpack(STONES, stones) end
if first_end <= now or first_end > now + 2 * TOMB then
  local fields, ended = {}, {}
  for n = first, math.min(first + MOST, after) - 1 do fields[#fields + 1] = 't' .. n end
  for i, stone in ipairs(redis.call('HMGET', lock.key, unpack(fields))) do
    local stone_end, id = struct.unpack(STONE, stone)
    first_end = math.min(stone_end, now + 2 * TOMB)
    if stone_end > now then break end
    first, ended[i] = first + 1, 'c' .. id
    del(fields[i])
  end
  for i, record in ipairs(#ended > 0 and redis.call('HMGET', lock.key, unpack(ended)) or {}) do
    -- A record that came back with another state is cleared away with its own end.
    if record and string.byte(record) == TOMBSTONE then
      del(ended[i])
      lock.tombstones = lock.tombstones - 1
    end
  end
  if first < after then set('t', struct.pack(STONES, first, after, first_end)) else del('t') end
  save(lock, true)
end

if late then
  -- After another step back of the clock all is scanned again.
  if back or not lock.cursor then lock.cursor, lock.found = false, 0 end
  local from, dead, fields = lock.cursor or '0', 0, {}
  local cursor = budget <= 0 and from
  if not cursor then cursor, fields = unpack(redis.call('HSCAN', lock.key, from, 'COUNT', budget)) end
  budget = budget - #fields / 2
  for i = 1, #fields, 2 do
    local field, kind = fields[i], string.byte(fields[i])
    local claim = kind == KIND_CLAIM and unpack_claim(fields[i + 1])
    -- A tombstone that has a number was cleared away above, or is not over.
    local numbered = claim and claim.state == TOMBSTONE and claim.number > 0
    if claim and claim.shortened then
      set_claim(field, claim)
      local _, id = struct.unpack(CLAIM_FIELD, field)
      if numbered then set('t' .. claim.number, struct.pack(STONE, claim.deadline, id)) end
    end
    if claim and claim.state ~= WAITS and not numbered then
      if claim.deadline <= now and dead < MOST then
        del(field)
        dead = dead + 1
        if claim.state == TOMBSTONE then lock.tombstones = lock.tombstones - 1 else count(lock, claim, -1) end
      elseif lock.found == 0 or claim.deadline < lock.found then
        lock.found = claim.deadline
      end
    elseif kind == KIND_PROCESS then
      local alive, claims = struct.unpack(PROCESS, fields[i + 1])
      if alive > now + LIVE then set(field, struct.pack(PROCESS, now + LIVE, claims)) end
    end
    if #sets > 200 then
      touch(lock)
      redis.call('HSET', lock.key, unpack(sets))
      sets = {}
    end
  end
  if cursor ~= '0' or budget <= 0 and #fields == 0 then
    lock.cursor, lock.earliest = cursor, lock.earliest > 0 and math.min(lock.earliest, now) or now
  else
    lock.earliest = lock.found
    -- The cursor of a scan means nothing to the server that takes this one's place. Another scan finds what such a scan has missed.
    if lock.cursor and lock.holders > 0 and (lock.earliest == 0 or lock.earliest > now + TOMB) then lock.earliest = now + TOMB end
    lock.cursor = false
  end
  save(lock, true)
end
