//! Who in a line lives.

use std::io;
use std::path::Path;

use crate::row::Row;
use crate::side::{self, BootId, Key, Pulse, Side};

/// How long a place in line outlives the last renewal of its process. A waiter that was stopped must not hold up the others
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

/// What is to be written into a row so that later readers judge it rightly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repair {
    /// Its side file is not there since then (or is there again).
    Missing(Option<u64>),
    /// Its fixed end, on the clock of this boot.
    Until(u64),
}

/// The verdict on one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It lives, until then if nothing is renewed; pinned ones have no such end.
    Alive { until: Option<u64>, repair: Option<Repair> },
    /// Its process, or its lease, is gone.
    Dead,
}

impl Standing {
    fn until(end: u64, now: u64, repair: Option<Repair>) -> Standing {
        if now < end { Standing::Alive { until: Some(end), repair } } else { Standing::Dead }
    }
}

/// Judges rows at one point in time; asks for each process once.
pub(crate) struct Census<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) boot: BootId,
    pub(crate) now: Now,
    own: Option<&'a Side>,
    seen: Vec<(Key, Pulse)>,
}

impl<'a> Census<'a> {
    pub(crate) fn new(folder: &'a Path, boot: BootId, own: Option<&'a Side>, now: Now) -> Census<'a> {
        Census { folder, boot, now, own, seen: Vec::new() }
    }

    /// Does this row's claim live?
    pub(crate) fn judge(&mut self, row: &Row) -> io::Result<Standing> {
        let now = self.now.boot;
        let Some(process) = row.process else { return Ok(self.judge_detached(row)) };
        let ttl = if row.holds() { row.ttl } else { WAITING_TTL };
        let standing = match self.pulse(process)? {
            Pulse::Free | Pulse::OtherBoot => Standing::Dead,
            Pulse::Locked { over, .. } if row.is_pinned() && row.holds() => {
                if over {
                    Standing::Dead
                } else {
                    Standing::Alive { until: None, repair: None }
                }
            }
            Pulse::Locked { renewed_at, .. } => {
                let repair = row.missing.map(|_| Repair::Missing(None));
                let renewed = renewed_at.saturating_add(ttl);
                if row.is_fixed() {
                    Standing::until(row.until.unwrap_or(renewed), now, repair)
                } else if row.is_evicted() {
                    // Without an end, the evictor has not yet told the owner: see `evict`.
                    Standing::until(row.until.unwrap_or(renewed).min(renewed), now, repair)
                } else {
                    Standing::until(renewed, now, repair)
                }
            }
            Pulse::Unknown => match row.missing {
                // A later time than now was written before a restart of the machine.
                Some(since) if since <= now => Standing::until(since.saturating_add(ttl), now, None),
                _ => Standing::until(now.saturating_add(ttl), now, Some(Repair::Missing(Some(now)))),
            },
        };
        Ok(standing)
    }

    /// A lease without a process ends by the clock. After a restart of the machine only the wall clock knows how long it has
    /// been; if that was set back meanwhile, the lease gets its full length once more, and no longer.
    pub(crate) fn judge_detached(&self, row: &Row) -> Standing {
        let now = self.now.boot;
        match (row.until, row.boot == Some(self.boot)) {
            (Some(until), true) => Standing::until(until, now, None),
            (Some(_), false) => {
                let left_micros = row.wall.unwrap_or(0).saturating_sub(self.now.wall);
                let end = now.saturating_add(left_micros.saturating_mul(1_000).min(row.ttl));
                Standing::until(end, now, Some(Repair::Until(end)))
            }
            (None, _) => Standing::Dead,
        }
    }

    fn pulse(&mut self, process: Key) -> io::Result<Pulse> {
        if let Some(own) = self.own.filter(|own| own.key() == process) {
            return Ok(Pulse::Locked { renewed_at: own.renewed_at(), over: false });
        }
        if let Some((_, pulse)) = self.seen.iter().find(|(key, _)| *key == process) {
            return Ok(*pulse);
        }
        let pulse = side::pulse(self.folder, process, self.boot)?;
        self.seen.push((process, pulse));
        Ok(pulse)
    }

    /// The processes that were seen to be gone for good.
    pub(crate) fn gone(&self) -> impl Iterator<Item = Key> {
        let gone = |pulse: &Pulse| matches!(pulse, Pulse::Free | Pulse::OtherBoot);
        self.seen.iter().filter(move |(_, pulse)| gone(pulse)).map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests;
