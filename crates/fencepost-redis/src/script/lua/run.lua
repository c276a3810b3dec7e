-- The run of the server: its own id, which no file brings back. If the server has been a replica in this run, the second
-- replication id follows, which says whose data it has taken then.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local taken = string.match(redis.call('INFO', 'replication'), 'master_replid2:(%x+)')
if taken and string.match(taken, '[^0]') then run = run .. taken end
