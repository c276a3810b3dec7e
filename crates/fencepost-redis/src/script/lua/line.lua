-- The code that a usual acquire or release does not need.

-- Whether this call has written yet, whether the key's expiry must be moved, and the writes that are left.
local dirty, move, sets, dels = false, false, {}, {}
-- How many fields this call may still scan.
local budget = SCAN

-- Turns to another lock.
local function open(name, s)
  key, move, sets, dels = name, false, {}, {}
  x, sh, ph, pn, mind, seen, last, exp, head, tail, nw, nt = 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0
  lone, cursor, found = nil, nil, 0
  if s then
    -- include summary
  end
end

local function set(field, value)
  local n = #sets
  sets[n + 1], sets[n + 2] = field, value
end

local function del(field)
  dels[#dels + 1] = field
end

-- The key lives as long as anything in it may, and `retention` ms more; moved seldom.
local function expire(until_us, retention)
  local need = math.floor(math.max(now, last, until_us) / 1000) + retention
  if exp < need then
    exp, move = need + math.floor(retention / 2), true
  end
end

-- Makes the writes that follow allowed, whatever the server's memory.
local function touch()
  if #dels > 0 then
    redis.call('HDEL', key, unpack(dels))
    dels, dirty = {}, true
  elseif not dirty then
    redis.call('PEXPIREAT', key, exp)
    dirty = true
  end
end

local function save()
  seen = now
  if x + sh + ph + nt == 0 and not cursor then mind = 0 end
  if x + sh + ph + nw + nt == 0 then
    mind, cursor = 0, nil
    set('s', struct.pack(IDLE, 3, now, last, exp, tail))
  else
    local rest = cursor and struct.pack('>d', found) .. cursor or ''
    set('s', struct.pack(SUM, 1, x, sh, ph, pn, mind, seen, last, exp, head, tail, nw, nt) .. rest)
  end
  if #dels > 0 then touch() end
  redis.call('HSET', key, unpack(sets))
  if move then redis.call('PEXPIREAT', key, exp) end
  dirty, move, sets = true, false, {}
end

local function add(mode, n)
  if mode == 1 then x = x + 1 elseif mode == 2 then sh = sh + 1 else ph, pn = ph + 1, pn + n end
end

local function remove(mode, n)
  if mode == 1 then x = x - 1 elseif mode == 2 then sh = sh - 1 else ph, pn = ph - 1, pn - n end
end

-- The rule of admission's first half: may it be held beside what is held?
local function fits(mode, n, of)
  if mode == 1 then return x + sh + ph == 0 end
  if mode == 2 then return x + ph == 0 end
  return x + sh == 0 and pn + n <= of
end

local function due(deadline)
  if mind == 0 or deadline < mind then mind = deadline end
  if found == 0 or deadline < found then found = deadline end
end

-- Reads a claim's record as it is after a clock was set back, whether a scan has come to it or not.
local function record(rec)
  local state, deadline, tok, since, ttl, seq, mode, n, of, proc = struct.unpack(REC, rec)
  local length = state == 2 and LIVE or state == 5 and 2 * TOMB or ttl
  return state, state > 1 and math.min(deadline, now + length) or 0, tok, since, ttl, seq, mode, n, of, proc
end

local function token()
  last = math.max(last + 1, now)
  return last
end

-- Leaves a tombstone for the claim `own`.
local function entomb(own, retention)
  local till = math.ceil(now / TOMB + 1) * TOMB
  touch()
  local known, first, after, least = redis.call('HGET', key, 't'), 1, 1, till
  if known then first, after, least = struct.unpack('>ddd', known) end
  local id, stone = string.sub(own, 9, 24), struct.pack(DYN, 5, till, 0, now, 2 * TOMB, after)
  set('t', struct.pack('>ddd', first, after + 1, least))
  set('t' .. after, struct.pack('>d', till) .. id)
  set('c' .. id, stone .. struct.pack('>BI4I4c16', 0, 0, 0, string.rep('0', 16)))
  nt = nt + 1
  expire(till, retention)
end

-- Clears away tombstones whose time is over, at most a hundred. Writes at once. Returns whether it did.
local function forget()
  local known = redis.call('HGET', key, 't')
  if not known then return false end
  local first, after, least = struct.unpack('>ddd', known)
  if least > now and least <= now + 2 * TOMB then return false end
  local fields, over = {}, {}
  for n = first, math.min(first + MOST, after) - 1 do fields[#fields + 1] = 't' .. n end
  for i, stone in ipairs(redis.call('HMGET', key, unpack(fields))) do
    local till, id = struct.unpack('>dc16', stone)
    least = math.min(till, now + 2 * TOMB)
    if till > now then break end
    first = first + 1
    del(fields[i])
    over[i] = 'c' .. id
  end
  if #over > 0 then
    -- Another version may have cleared it away already.
    for i, rec in ipairs(redis.call('HMGET', key, unpack(over))) do
      if rec and string.byte(rec) == 5 then
        del(over[i])
        nt = nt - 1
      end
    end
  end
  if first < after then set('t', struct.pack('>ddd', first, after, least)) else del('t') end
  touch()
  save()
  return true
end

-- Gives a lone holder a field of its own. Clears away holders and tombstones whose time is over, and draws in what a clock set back has
-- lengthened. Scans only when the least deadline has passed, and a part of a large hash: then that deadline stays over, and the next call
-- goes on, see head.lua. Writes at once. Returns whether there was anything to do.
local function purge()
  local back, changed = now < seen, lone ~= nil
  local late = back or mind > 0 and mind <= now
  if lone then
    if string.byte(lone) == 4 then del('l' .. string.sub(lone, 51, 66)) end
    touch()
    -- It has no number in line, and has been held since its token was given, as far as the clock that gave it tells.
    local _, at, tok, _, _, _, lease = struct.unpack('>BddddBd', lone)
    local moving = struct.pack(DYN, 3, at + lease, tok, math.min(tok, at), lease, 0)
    set('c' .. string.sub(lone, 51, 66), moving .. string.sub(lone, 69))
    lone = nil
    save()
  end
  if nt > 0 and forget() then changed = true end
  if not late then return changed end
  local from, dead = cursor or '0', 0
  -- After another step back of the clock all is scanned again.
  if back or not cursor then from, found, cursor = '0', 0, nil end
  -- A call for many locks leaves the last of them to the next call.
  local batch = budget > 0 and redis.call('HSCAN', key, from, 'COUNT', budget)
  local all = batch and batch[2] or {}
  budget = budget - #all / 2
  for i = 1, #all, 2 do
    local field, value = all[i], all[i + 1]
    local kind = string.byte(field)
    if kind == 99 then
      local state, deadline, tok, since, ttl, seq, mode, n = record(value)
      if state > 1 then
        if struct.unpack('>d', value, 2) > deadline then
          set(field, struct.pack(DYN, state, deadline, tok, since, ttl, seq) .. string.sub(value, 42))
          if state == 5 and seq > 0 then set('t' .. seq, struct.pack('>d', deadline) .. string.sub(field, 2)) end
        end
        -- A tombstone that has a number goes by that.
        if state == 5 and seq > 0 then
        elseif deadline <= now and dead < MOST then
          del(field)
          dead = dead + 1
          if state < 5 then remove(mode, n) else nt = nt - 1 end
        elseif found == 0 or deadline < found then
          found = deadline
        end
      end
    elseif kind == 112 then
      local alive, count = struct.unpack(PROC, value)
      if alive > now + LIVE then set(field, struct.pack(PROC, now + LIVE, count)) end
    end
    if #sets > 200 then
      touch()
      redis.call('HSET', key, unpack(sets))
      sets = {}
    end
  end
  if not batch or batch[1] ~= '0' then
    cursor, mind = batch and batch[1] or from, mind > 0 and math.min(mind, now) or now
  else
    mind = found
    -- A cursor means nothing to the server that takes this one's place: what this scan has missed is found by another, a minute later.
    if cursor and x + sh + ph > 0 and (mind == 0 or mind > now + TOMB) then mind = now + TOMB end
    cursor = nil
  end
  touch()
  -- At once, before the rest of the script: a summary that counts a claim that was cleared away would keep the lock held without end.
  save()
  return true
end

-- Hands the lock on: walks the line from its head, clears away the places of the dead, and makes holders of
-- those that fit, up to the first that does not. Each winner's process gets one message. A process that no message reaches is
-- passed over and keeps its places; in a cluster, where the count is that of one node, it is believed to be reached. Behind too many that
-- are passed over the walk ends: within LIVE they send a command, or they are dead.
-- Returns whether nobody who can be reached is left waiting, and whether another call has more to do. So it has, too, where the least
-- deadline is still over after the call's last `save`: holders that are dead, and too many for one call, stand in the way.
local function tend(inbox, cluster)
  local passed, procs, gone, clear, more = {}, {}, 0, true, false
  local start, ahead, over = head, 0, 0
  while nw > 0 do
    local won, pos, step, first, stop = {}, start, 1, ahead, false
    clear = true
    while pos < tail and not stop do
      local fields = {}
      for i = 1, math.min(step, tail - pos) do fields[i] = 'w' .. pos + i - 1 end
      local line = redis.call('HMGET', key, unpack(fields))
      for i = 1, #fields do
        local place = line[i]
        if place then
          local id, proc = string.sub(place, 1, 16), string.sub(place, 17)
          if passed[proc] then
            if first == 0 then first, ahead = pos, pos end
            over = over + 1
            if over >= OVER then stop, clear = true, false end
          else
            local got = redis.call('HMGET', key, 'c' .. id, 'p' .. proc)
            local rec, p = got[1], procs[proc]
            if not p then
              p = { 0, 0 }
              if got[2] then p[1], p[2] = struct.unpack(PROC, got[2]) end
              p[1] = math.min(p[1], now + LIVE)
              procs[proc] = p
            end
            if p[1] <= now then
              del(fields[i])
              del('c' .. id)
              nw, gone, p[2], p[3] = nw - 1, gone + 1, p[2] - 1, true
              if gone >= MOST then stop, clear, more = true, false, true end
            else
              local _, _, _, _, ttl, seq, mode, n, of = struct.unpack(REC, rec)
              if fits(mode, n, of) then
                add(mode, n)
                won[#won + 1] = { fields[i], place, id, proc, rec, ttl, seq, mode, n, token() }
                -- Nothing stands beside an exclusive holder: no need to look further.
                if mode == 1 then stop, clear = true, nw <= #won end
                if #won >= MOST * 5 then stop, clear, more = true, false, true end
              else
                stop, clear = true, false
                if first == 0 then first = pos end
              end
            end
          end
        end
        pos = pos + 1
        if stop then break end
      end
      step = math.min(step * 8, 96)
    end
    head = first > 0 and first or pos
    if #won == 0 then break end
    local messages, reached = {}, {}
    for _, w in ipairs(won) do
      del(w[1])
      messages[w[4]] = (messages[w[4]] or '') .. 'G' .. w[3] .. struct.pack('>d', w[10])
    end
    touch()
    local again = false
    for proc, message in pairs(messages) do
      -- Where it is not allowed the script must not end half-way: the winners ask by themselves within a second.
      local count = redis.pcall('PUBLISH', inbox .. proc, message)
      if count == 0 and not cluster then passed[proc], again, over = true, true, over + 10 end
    end
    start = tail
    for _, w in ipairs(won) do
      local p = procs[w[4]]
      if passed[w[4]] then
        remove(w[8], w[9])
        set(w[1], w[2])
        head, start = math.min(head, w[7]), math.min(start, w[7])
      else
        nw, p[2], p[3] = nw - 1, p[2] - 1, true
        due(p[1])
        set('c' .. w[3], struct.pack(DYN, 2, p[1], w[10], now, w[6], w[7]) .. string.sub(w[5], 42))
      end
    end
    if not again or more then break end
    -- The next turn reads what this one has put back.
    redis.call('HSET', key, unpack(sets))
    sets = {}
  end
  if nw == 0 then head = tail end
  for proc, p in pairs(procs) do
    if p[3] then
      if p[2] > 0 then set('p' .. proc, struct.pack(PROC, p[1], p[2])) else del('p' .. proc) end
    end
  end
  return clear, more
end
