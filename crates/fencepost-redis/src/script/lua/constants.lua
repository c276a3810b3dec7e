-- The constants of the script. Before a server gets the text, their values take the place of their names in it (`with_constants` in
-- mod.rs), because a function takes hold of each local variable of its surroundings when it is made, and all are made in each call.
-- Modes.
local EXCLUSIVE, SHARED, PERMITS = 1, 2, 3
-- States of a claim. HANDED: was handed the lock, and has not confirmed it. EVICTED: cannot renew its lease, and counts as a holder until
-- that has expired. TOMBSTONE: has left; its record stays, so that a late request does not bring the claim back.
local WAITS, HANDED, HOLDS, EVICTED, TOMBSTONE = 1, 2, 3, 4, 5
-- LIVE: for how many µs a client counts as alive after its last request. A claim stays HANDED no longer than that.
-- A tombstone lasts between one and two TOMB, in µs; a lock has at most TOMBS of them.
local LIVE, TOMB, TOMBS = 1900000, 60000000, 1000
-- One call clears away at most MOST dead claims, admits five times as many, reads about SCAN fields in search of the dead, and passes over
-- at most MOST_PASSED claims in the queue. A client that no message reaches costs a PUBLISH, so it counts as UNREACHED of those; its other
-- claims count as one each.
local MOST, SCAN, MOST_PASSED, UNREACHED = 100, 1000, 10000, 50
-- Formats, see lock.lua. FORM: of a summary. OWNER_LENGTH: of an OWNER. TERMS_START: where the terms of a CLAIM begin.
local FORM, SUMMARY, OWNER, OWNER_LENGTH, SCANNED = 1, '>BBI4I4dddddddI4I4', '>c16c16', 32, '>d'
local SENDER, REQUEST, REFUSED = '>dc16BB', '>Bddc16BB', '>dc16'
local RECORD, CLAIM, TERMS, TERMS_START = '>Bddddd', '>BdddddBI4I4c16', '>BI4I4c16', 42
local CLIENT, WAITER, STONE, STONES = '>dI4', '>c16c16', '>dc16', '>ddd'
-- The names of fields c, and the first bytes of the names of fields c and p. NOBODY: in the place of a client.
local CLAIM_FIELD, KIND_CLAIM, KIND_CLIENT, NOBODY = '>Bc16', 99, 112, '0000000000000000'
