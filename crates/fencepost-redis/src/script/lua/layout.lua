-- The layout of a lock in Redis: one hash. Its fields:
--   s      the summary. Its first byte is its form:
--          FULL  SUMMARY: form, exclusive holders, shared ones, ones of permits, permits held, earliest deadline or 0, time last seen, last
--                token, expiry of the key, first and next number of the line, claims in it, tombstones. While a scan for the dead is
--                under way, SCANNED, the earliest deadline that it has found, and its cursor follow.
--          IDLE  IDLE_SUMMARY: form, time last seen, last token, expiry, next number of the line. Nobody holds the lock; or, if a
--                request follows, a lone holder does: a claim that found the lock idle and wants it exclusively. Its lease runs from the
--                time last seen, its token is the last one. There are no fields c, w, p and t.
--          HDEL  as IDLE, but the lone holder holds the lock only as long as the field l<id> is there
--   l<id>  empty. HDEL of this field releases the lock without a script, which costs the server a fifth of a script. It is there only while
--          nobody waits: a claim that joins the line deletes it first, and HDEL finds nothing then.
--   c<id>  a claim. CLAIM: RECORD, which is state, deadline, token, since, lease, number in the line or of the tombstone; then its terms.
--          If the claim is evicted, a zero byte follows its text, and then who evicted it and why.
--   w<n>   number n in the line. PLACE: id, process.      p<process>  with claims in the line. PROCESS: alive until, number of its claims.
--   t<n>   number n of the tombstones, in the order of their ends. STONE: end, id.     t  STONES: first and next number, end of the first.
--   e, r   only at a node of a quorum. e: the run of the server in which it gave its last vote, see stay_out.lua. r: there are claims that
--          it has refused. The refused claims are in a sorted set, `redlock:` and the lock's key, the oldest first. REFUSED: when the
--          claim was made, id; then its terms.
--   u      of a marked holder: its id, and the channel of its process.
-- Upgrades: a turn makes a holder exclusive or shared, see turn.lua. A claim's turns are numbered. A request with an older turn was late.
-- A shared holder that waits to be the only one is marked. Its mode is EXCLUSIVE meanwhile, and the summary counts one exclusive holder
-- beside shared ones: then the lock admits nobody. `of` in the terms of an exclusive or shared holder is twice the number of its last
-- turn, and 1 more if it is marked.
-- TERMS: mode, permits, out of how many, process; then the claim's text, which is JSON of core and has no zero byte.
-- SENDER: retention, id, "in a cluster", length of the prefix of all keys.
-- REQUEST: `joins`, which is 1 if it joins the line, and 2 more if it passes claims that wait; lease; then sender and terms.
-- Times are µs of the server's clock; retention and expiry are ms. A process has 16 hex digits.
-- A process has a channel for messages: the inbox prefix and its name. The messages are in inbox.rs.
local _
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local key = KEYS[1]

-- When the key expires, which does so at `expires` now: as long as anything in it may last, and `retention` later. It is moved seldom.
local function expiry(expires, time, token, retention)
  local need = math.floor(math.max(now, token, time) / 1000) + retention
  return expires < need and need + math.floor(retention / 2) or expires
end
