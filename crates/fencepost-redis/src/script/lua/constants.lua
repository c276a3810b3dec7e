-- A script is made with the values in place of these names: a local that functions use costs 0.1 µs in each call.
-- Forms of a summary, see layout.lua, and modes.
FULL_FORM = 1; IDLE_FORM = 2; HDEL_FORM = 3; EXCLUSIVE = 1; SHARED = 2; PERMITS = 3
-- States of a claim. HANDED: was handed the lock, and has not confirmed it. EVICTED: cannot renew its lease, and counts as a holder until
-- that is over. TOMBSTONE: has left; its record stays, so that a late request does not bring the claim back.
WAITS = 1; HANDED = 2; HOLDS = 3; EVICTED = 4; TOMBSTONE = 5
-- LIVE: for how many µs a process counts as alive after its last request. A claim stays HANDED no longer than that.
-- A tombstone lasts between one and two TOMB, in µs; a lock has at most TOMBS of them.
LIVE = 1900000; TOMB = 60000000; TOMBS = 1000
-- One call clears away at most MOST dead claims, admits five times as many, reads about SCAN fields in search of the dead, and passes over
-- at most OVER claims in the line. When a message first finds that a process cannot be reached, its claim counts as UNREACHED of those.
MOST = 100; SCAN = 1000; OVER = 10000; UNREACHED = 50
-- Formats, see layout.lua. TERMS_START: where the terms of a
-- CLAIM begin. KIND: the first byte of the names of fields c and p.
SUMMARY = '>BBI4I4dddddddI4I4'; SCANNED = '>d'; IDLE_SUMMARY = '>Bdddd'; SENDER = '>dc16BB'; REQUEST = '>Bddc16BB'; TERMS = '>BI4I4c16'
RECORD = '>Bddddd'; CLAIM = '>BdddddBI4I4c16'; TERMS_START = 42; PROCESS = '>dI4'; PLACE = '>c16c16'; STONE = '>dc16'; STONES = '>ddd'
REFUSED = '>dc16'; CLAIM_FIELD = '>Bc16'; KIND_CLAIM = 99; KIND_PROCESS = 112
