-- Reads the `summary` of a lock that is idle, that a lone holder holds, or that is not there, into locals. `lone`: the holder's request.
local form, seen, token, expires, number, lone, behind = summary and string.byte(summary) or IDLE_FORM, 0, 0, 0, 1, nil, nil
if form ~= FULL_FORM and form ~= IDLE_FORM and form ~= HDEL_FORM then
  error('FENCEPOST layout ' .. form .. ' of the lock is not known to this version')
elseif summary and form ~= FULL_FORM then
  _, seen, token, expires, number, behind = struct.unpack(IDLE_SUMMARY, summary)
  if behind <= #summary then
    local joins, lease, retention, id, in_cluster, prefix, terms = struct.unpack(REQUEST, summary, behind)
    if form == IDLE_FORM or redis.call('HGET', key, 'l' .. id) then
      local _, _, _, process = struct.unpack(TERMS, summary, terms)
      lone = { state = HOLDS, deadline = math.min(seen, now) + lease, token = token, since = math.min(token, seen), lease = lease,
        number = 0, mode = EXCLUSIVE, permits = 0, process = process, terms = string.sub(summary, terms), form = form, joins = joins,
        retention = retention, id = id, in_cluster = in_cluster, prefix = prefix }
    end
  end
end
