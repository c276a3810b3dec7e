-- The beginning of each script of the queue.
--
-- KEYS[1..]: locks, each one hash. The scripts touch no other key, but for a node of a quorum, see vote.lua and refused.lua.
-- Fields of the hash:
--   s        the summary, see SUM: 1, holders by mode, the least deadline, time last seen, last token, when the key expires, the
--            line's first and next number, how many wait, how many tombstones there are. While a scan for the dead is under way, the
--            least deadline is over, and two things follow: the least deadline that the scan has found so far, and its cursor.
--            Of an idle lock it is shorter, see IDLE, and no other field of these is there: 3, time last granted or renewed, last token,
--            when the key expires, the line's next number. So it is of a lock that is held exclusively and was idle before: what its
--            claim asked with follows, see lua/front.lua; the lease runs from that time, and the token is the last. Each command
--            but a renewal and the end of that grant gives it a field of its own first. If it begins with 4, it is held only as
--            long as the field `l<id>` is there, and else idle.
--   l<id>    empty: the claim in a summary of form 4 holds. Its release is HDEL of this field, without a script, which costs the
--            server a sixth of one. The field is there only while no other claim stands in line for the lock: a claim that
--            joins the line changes the form first, and HDEL finds nothing then.
--   c<id>    a claim, see REC: state, deadline, token, since when, lease, number in line, mode, permits, process, then text, and if it is evicted
--            a byte that is 0, who evicted it and why
--   w<n>     number n in line: id and process of the claim
--   p<proc>  a process with places in this line: until when it is taken for alive, how many places it has
--   t<n>     number n among the tombstones, in the order of their times: until when, and the id. The claim's record has the number, too.
--   t        the first and the next of those numbers, and until when the first lasts; absent without tombstones
-- A claim's name, where a script says so: retention in ms (a double), its id (16 bytes), a byte that is 1 in a cluster, and how many
-- bytes of the key are the prefix of all, with which and `@` the channels of all inboxes begin, too.
-- States of a claim: 1 waits, 2 was handed the lock and has not confirmed it, 3 holds, 4 holds but is evicted, 5 a
-- tombstone: it has left, and must not come back by a command that was replayed.
--
-- Invariants: time is TIME, see clock.lua; times are µs of the server's wall clock and nothing outlives `now` plus
-- its length, so that a clock set back cannot lengthen a lease. Tokens are max(last + 1, now). A call's first write is one
-- that a full server allows (HDEL, PEXPIREAT) wherever PUBLISH comes after it: no message goes out whose grant is refused.
--
-- A call reads at most some SCAN fields in its search for the dead, and the next call goes on where it has ended. Correctness does not
-- depend on the end of that search. A dead holder that is not yet found is counted as a holder. So a claim may be refused too long, and
-- is never granted too early. Each record that a call decides by is read with the deadline that the search would give it.
-- A version that does not know the cursor cuts it off when it writes the summary: the search begins again.
--
-- A server runs one script at a time, so the cost of a script limits the server. Each call creates each function and table that it
-- reaches. So the code of a usual acquire and release has none, and lua/line.lua, which is for the other cases, stands inside a branch.

local SUM, IDLE, REC, DYN, PROC = '>BBI4I4dddddddI4I4', '>Bdddd', '>BdddddBI4I4c16', '>Bddddd', '>dI4'
-- How long a process counts as alive after its last command, and how long a grant that it was handed lasts unconfirmed.
local LIVE = 1900000
-- A tombstone lasts between one and two of these.
local TOMB = 60000000
-- A lock has at most this many tombstones.
local TOMBS = 1000
-- One call clears away at most this many dead claims, and admits at most five times as many.
local MOST = 100
-- One call reads about this many fields in search of the dead. A small hash is read whole.
local SCAN = 1000
-- One call passes over at most this many places. A process whose message reaches nobody counts as ten more.
local OVER = 2000

local key = KEYS[1]
local x, sh, ph, pn, mind, seen, last, exp, head, tail, nw, nt = 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0
-- The summary of a lock that is held and was idle before. A name for the value of a field that is not used.
local lone, _
-- Where a scan for the dead goes on, and the least deadline that it has found, or 0.
local cursor, found = nil, 0
