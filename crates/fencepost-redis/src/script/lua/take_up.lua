-- Takes up a grant by its id: extends its lease, and says whose it is from now on. Detaching gives it to nobody.
-- KEYS[1] the lock. ARGV: 1 the claim's id; 2 the process, or sixteen zeros for nobody; 3 lease in µs; 4 retention in ms; 5 mode;
-- 6 permits; 7 out of how many. Reply: HELD token, or GONE.
-- include layout
local summary = redis.call('HGET', key, 's')
-- include idle, open, change, clear
local field, process, lease, retention = 'c' .. ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local mode, permits, of = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local record = redis.call('HGET', key, field)
local claim = record and unpack_claim(record)
if not claim or claim.state ~= HANDED and claim.state ~= HOLDS or claim.deadline <= now then return 'GONE' end
if claim.mode ~= mode or is_marked(claim) or mode == PERMITS and (claim.permits ~= permits or claim.of ~= of) then return 'GONE' end
local _, _, _, _, text = struct.unpack(TERMS, claim.terms)
claim.terms = struct.pack(TERMS, mode, permits, of, process) .. string.sub(claim.terms, text)
if claim.state == HANDED then claim.deadline = 0 end
confirm(lock, field, claim, lease, retention)
save(lock, true)
return 'HELD' .. struct.pack('>d', claim.token)
