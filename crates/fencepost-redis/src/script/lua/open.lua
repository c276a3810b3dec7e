-- Makes the table `lock` of the `summary` of the lock at `key`. All holders have the same mode, unless one is `marked`: see layout.lua.
-- `alone`: that one has become the only holder. `back`: the clock was set back. `late`: that, or a holder's time is over.
local lock = { key = key, holders = lone and 1 or 0, mode = EXCLUSIVE, permits = 0, earliest = lone and lone.deadline or 0, seen = seen,
  token = token, expires = expires, first = number, next = number, waiting = 0, tombstones = 0, moved = false, lone = lone,
  marked = false, alone = false }
if form == FULL_FORM then
  local exclusive, shared, of_permits
  _, exclusive, shared, of_permits, lock.permits, lock.earliest, lock.seen, lock.token, lock.expires, lock.first,
    lock.next, lock.waiting, lock.tombstones, behind = struct.unpack(SUMMARY, summary)
  lock.holders, lock.mode = exclusive + shared + of_permits, exclusive > 0 and EXCLUSIVE or shared > 0 and SHARED or PERMITS
  lock.marked = exclusive > 0 and shared > 0
  if behind <= #summary then
    lock.found, behind = struct.unpack(SCANNED, summary, behind)
    lock.cursor = string.sub(summary, behind)
  end
end
local back = now < lock.seen
local late = back or lock.earliest > 0 and lock.earliest <= now
