-- A script is made with the values in place of these names: a local that functions use costs 0.1 µs in each call.
-- Forms of a summary, see layout.lua, and modes.
FULL_FORM = 1; IDLE_FORM = 3; HDEL_FORM = 4; EXCLUSIVE = 1; SHARED = 2; PERMITS = 3
-- States of a claim. HANDED: was handed the lock, and has not confirmed it. TOMBSTONE: has left, and a late request must not bring it back.
WAITS = 1; HANDED = 2; HOLDS = 3; EVICTED = 4; TOMBSTONE = 5
-- For how many µs a process counts as alive after its last request, and a claim is HANDED the lock. A tombstone lasts between one and
-- two TOMB; a lock has at most TOMBS of them.
LIVE = 1900000; TOMB = 60000000; TOMBS = 1000
-- One call clears away at most MOST dead claims, admits five times as many, reads about SCAN fields in search of the dead, and passes over
-- at most OVER claims in the line. The first place of a process that no message reaches counts as UNREACHED.
MOST = 100; SCAN = 1000; OVER = 10000; UNREACHED = 50
-- Formats, see layout.lua. TERMS_START: where the terms of a CLAIM begin. KIND: the first byte of the names of fields c and p.
SUMMARY = '>BBI4I4dddddddI4I4'; SCANNED = '>d'; IDLE_SUMMARY = '>Bdddd'; SENDER = '>dc16BB'; REQUEST = '>Bddc16BB'; TERMS = '>BI4I4c16'
RUN = '>ddddB'; RUN_TEXT = 34; RUN_END = '>dddB'; REPORTED = 1; LOST = 2; WITHDRAWN = 16; TERMS_TEXT = 26; MILLIS = '>d'
RECORD = '>Bddddd'; CLAIM = '>BdddddBI4I4c16'; TERMS_START = 42; PROCESS = '>dI4'; PLACE = '>c16c16'; STONE = '>dc16'; STONES = '>ddd'
REFUSED = '>dc16'; CLAIM_FIELD = '>Bc16'; KIND_CLAIM = 99; KIND_PROCESS = 112
