-- Hands the lock on: walks the line from its front, removes the claims of dead processes, and makes holders of the claims that fit, up
-- to the first that does not. The process of each gets a message, unless this call's reply tells it. The claims of a process that no
-- message reaches keep their places and are passed over: within LIVE it sends a request, or it is dead. A server of a cluster counts only
-- its own subscribers, so there every process counts as reached. `all_served`: no claim that can be reached waits any more. `more`:
-- another call has more to do.
all_served, more = lock.waiting == 0, false
if lock.waiting > 0 and (lock.holders == 0 or lock.mode ~= EXCLUSIVE) then
  local number, batch, first_left, admitted, removed, passed, stop = lock.first, 1, nil, 0, 0, 0, false
  while number < lock.next and not stop do
    local fields = {}
    for i = 1, math.min(batch, lock.next - number) do fields[i] = 'w' .. number + i - 1 end
    for i, place in ipairs(redis.call('HMGET', lock.key, unpack(fields))) do
      local id, name, process
      if place then
        id, name = struct.unpack(PLACE, place)
        process = processes[name]
      end
      if process and process.unreached then
        passed, first_left = passed + 1, first_left or number
      elseif place then
        local record, stored = unpack(redis.call('HMGET', lock.key, 'c' .. id, 'p' .. name))
        process = process or unpack_process(stored)
        processes[name] = process
        local claim = process.alive > now and unpack_claim(record)
        if claim and claim.mode == PERMITS then
          -- include limit
        end
        -- A claim for more permits than the limit would block the line for good. It finds that it is gone, and enters again.
        if not claim or claim.of >= 0 and claim.permits > claim.of then
          leave_place(fields[i], name, process)
          del('c' .. id)
          lock.waiting, removed = lock.waiting - 1, removed + 1
        elseif not fits(lock, claim) then
          stop, first_left = true, first_left or number
        else
          leave_place(fields[i], name, process)
          if not written then touch(lock) end
          local token = math.max(lock.token + 1, now)
          -- An error, of a user who may not publish, must not end the script half-way: then the claim asks by itself within a second.
          local reached = asked[id] or redis.pcall('PUBLISH', inbox .. name, 'G' .. id .. struct.pack('>d', token))
          if reached == 0 and not cluster then
            set(fields[i], place)
            process.unreached, process.claims = true, process.claims + 1
            passed, first_left = passed + UNREACHED, first_left or number
          else
            claim.state, claim.deadline, claim.token, claim.since = HANDED, process.alive, token, now
            count(lock, claim, 1)
            set_holder(lock, 'c' .. id, claim)
            lock.token, lock.waiting, admitted, stop = token, lock.waiting - 1, admitted + 1, claim.mode == EXCLUSIVE
          end
        end
      end
      number, more = number + 1, removed >= MOST or admitted >= MOST * 5
      stop = stop or more or passed >= OVER
      if stop then break end
    end
    batch = math.min(batch * 8, 96)
  end
  all_served = not stop or lock.waiting == 0
  lock.first = first_left or number
end
for name, process in pairs(processes) do
  if process.changed and process.claims > 0 then set('p' .. name, struct.pack(PROCESS, process.alive, process.claims)) end
end
processes = {}
