//! Tells which claims of a queue are alive.

use std::io;
use std::path::Path;

use fencepost_core::Clock;

use crate::db::rows::Row;
use crate::process::heartbeat_file::{self, BootId, ClientKey, HeartbeatFile, ProcessState};

/// How long a position in the queue outlives the last renewal of its process. A waiter that was stopped must not hold up the others
/// for the whole length of the lease that it wants.
pub(crate) const WAITING_TTL: u64 = 3_000_000_000;

/// Now, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// CLOCK_BOOTTIME in nanoseconds.
    pub(crate) boot: u64,
    /// Microseconds since 1970. A deadline runs on it only across a restart of the machine.
    pub(crate) wall: u64,
}

/// The change of a row that later readers need for the right decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repair {
    /// Its side file is not there since then (or is there again).
    Missing(Option<u64>),
    /// Its fixed end, on the clock of this boot.
    Until(u64),
}

/// The verdict on one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Liveness {
    /// It lives, until then if nothing is renewed; pinned ones have no such end.
    Alive { until: Option<u64>, repair: Option<Repair> },
    /// Its process, or its lease, is gone.
    Dead,
}

impl Liveness {
    fn until(end: u64, now: u64, repair: Option<Repair>) -> Liveness {
        if now < end { Liveness::Alive { until: Some(end), repair } } else { Liveness::Dead }
    }
}

/// Judges rows at one point in time; asks for each process once.
pub(crate) struct LivenessCheck<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) boot: BootId,
    pub(crate) now: Now,
    own: Option<&'a HeartbeatFile>,
    /// Tells when a file was found missing. `None`: at `now`.
    clock: Option<&'a Clock>,
    seen: Vec<(ClientKey, ProcessState)>,
}

impl<'a> LivenessCheck<'a> {
    pub(crate) fn new(
        folder: &'a Path,
        boot: BootId,
        own: Option<&'a HeartbeatFile>,
        now: Now,
    ) -> LivenessCheck<'a> {
        LivenessCheck { folder, boot, now, own, clock: None, seen: Vec::new() }
    }

    /// Notes the time of each look at a file that is missing by this clock.
    pub(crate) fn by_clock(self, clock: &'a Clock) -> LivenessCheck<'a> {
        LivenessCheck { clock: Some(clock), ..self }
    }

    /// Does this row's claim live?
    pub(crate) fn check(&mut self, row: &Row) -> io::Result<Liveness> {
        let now = self.now.boot;
        let Some(process) = row.process else { return Ok(self.check_detached(row)) };
        let ttl = if row.has_lease() { row.ttl } else { WAITING_TTL };
        let is_there = row.missing.map(|_| Repair::Missing(None));
        let standing = match self.state_of(process)? {
            ProcessState::Unlocked => Liveness::Dead,
            ProcessState::Locked { over, .. } if row.is_pinned() && row.holds() => {
                if over {
                    Liveness::Dead
                } else {
                    Liveness::Alive { until: None, repair: is_there }
                }
            }
            ProcessState::Locked { renewed_at, .. } => {
                let renewed = renewed_at.saturating_add(ttl);
                if row.is_fixed() {
                    Liveness::until(row.until.unwrap_or(renewed), now, is_there)
                } else if row.is_evicted() {
                    // Without an end, the evictor has not yet told the owner: see `evict`.
                    Liveness::until(row.until.unwrap_or(renewed).min(renewed), now, is_there)
                } else {
                    Liveness::until(renewed, now, is_there)
                }
            }
            ProcessState::Unknown => {
                // This process may have been stopped after `now` was noted, and the row's process may have renewed its lease meanwhile.
                let looked = self.clock.map_or(now, |clock| clock.now().as_nanos());
                match row.missing {
                    // A later time than that of the look was written before a restart of the machine.
                    Some(since) if since <= looked => Liveness::until(since.saturating_add(ttl), now, None),
                    _ => {
                        let repair = Some(Repair::Missing(Some(looked)));
                        Liveness::until(looked.saturating_add(ttl), now, repair)
                    }
                }
            }
        };
        Ok(standing)
    }

    /// A lease without a process ends by the clock. After a restart of the machine only the wall clock knows how long it has
    /// been; if that was set back meanwhile, the lease gets its full length once more, and no longer.
    pub(crate) fn check_detached(&self, row: &Row) -> Liveness {
        let now = self.now.boot;
        match (row.until, row.boot == Some(self.boot)) {
            (Some(until), true) => Liveness::until(until, now, None),
            (Some(_), false) => {
                let left_micros = row.wall.unwrap_or(0).saturating_sub(self.now.wall);
                let end = now.saturating_add(left_micros.saturating_mul(1_000).min(row.ttl));
                Liveness::until(end, now, Some(Repair::Until(end)))
            }
            (None, _) => Liveness::Dead,
        }
    }

    fn state_of(&mut self, process: ClientKey) -> io::Result<ProcessState> {
        if let Some(own) = self.own.filter(|own| own.key() == process) {
            return Ok(ProcessState::Locked { renewed_at: own.renewed_at(), over: false });
        }
        if let Some((_, state)) = self.seen.iter().find(|(key, _)| *key == process) {
            return Ok(*state);
        }
        let state = heartbeat_file::state(self.folder, process)?;
        self.seen.push((process, state));
        Ok(state)
    }

    /// The processes that were seen to be gone for good.
    pub(crate) fn dead_processes(&self) -> impl Iterator<Item = ClientKey> {
        self.seen.iter().filter(|(_, state)| *state == ProcessState::Unlocked).map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests;
