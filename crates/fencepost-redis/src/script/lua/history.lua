-- The runs of one lock, which are kept for clients that ask: see history.rs. KEYS[1] has them, apart from the lock.
-- ARGV: the step (look, begin, turn, end, cancel), the token of the run, the beginning of its text, and how long to keep it in ms. Then of
-- begin whether others may hold the lock, too. Of turn the token since an upgrade, with the text for that. Of end the rest of the text, whether it is a good end, since when the grant was held,
-- and whether others may hold the lock, too.
-- Reply: a list: now in µs; of begin since when the run is under way; of look three texts without their last brace.
local key, step, token, head = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', tonumber(time[2]))
local reply = { tonumber(now) }
local running, under_way, last, ended, open, good, kept =
  unpack(redis.call('HMGET', key, 'running', 'running_token', 'last', 'last_token', 'open', 'good', 'kept'))
if step == 'look' then
  reply[2], reply[3], reply[4] = running or '', last or '', good or ''
  return reply
end
if step == 'begin' then
  if under_way == token then
    reply[2] = string.match(running, '"since":(%d+)$')
    return reply
  end
  -- Nobody else holds it: the run before this one has ended without a report.
  if under_way and ARGV[5] == '0' then
    redis.call('HSET', key, 'last', running, 'last_token', under_way, 'open', '1')
  end
  redis.call('HSET', key, 'running', head .. ',"since":' .. now, 'running_token', token)
  reply[2] = now
elseif step == 'turn' then
  if under_way == token then
    redis.call('HSET', key, 'running', head .. string.match(running, ',"since":%d+$'), 'running_token', ARGV[5])
  end
elseif step == 'end' then
  local text
  if under_way == token then
    text = running
  elseif ended == token then
    text = open and last
  elseif ARGV[7] ~= '' and not (ARGV[8] == '0' and ended and tonumber(ended) > tonumber(token)) then
    text = head .. ',"since":' .. ARGV[7]
  end
  -- Reported before, or a later run has come.
  if not text then return reply end
  text = text .. ',"ended":' .. now .. ARGV[5]
  redis.call('HSET', key, 'last', text, 'last_token', token)
  if ARGV[6] == '1' then redis.call('HSET', key, 'good', text) end
  redis.call('HDEL', key, 'open')
  if under_way == token then redis.call('HDEL', key, 'running', 'running_token') end
elseif under_way == token then
  redis.call('HDEL', key, 'running', 'running_token')
end
-- No shorter than another claim has asked before.
local until_ms = math.max(time[1] * 1000 + ARGV[4], tonumber(kept or 0))
redis.call('HSET', key, 'kept', string.format('%d', until_ms))
redis.call('PEXPIREAT', key, string.format('%d', until_ms))
return reply
