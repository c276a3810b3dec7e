//! The liveness of a client's claims: its side file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, Loss, Reply, Result, Session, State};

use crate::client::{BUSY_TIMEOUT, Client, moment};
use crate::db::lease;
use crate::db::queue;
use crate::db::rows;
use crate::error::Failure;
use crate::process::eviction_file;
use crate::process::liveness::WAITING_TTL;
use crate::waiters::{self, TrackedClaim};

/// One per client. A round is one write to the side file; only leases that change their length, fixed ones and detached ones
/// need the database.
pub(crate) struct SqliteSession {
    client: Arc<Client>,
    /// What an eviction file said that was removed before the rows could be read. The next round reads them.
    unread_evictions: Mutex<Option<String>>,
}

/// What a round has still to write into the database.
struct Unwritten<'a> {
    claims: Vec<&'a Arc<Claim>>,
    /// How long it may wait for the database. The leases that it has confirmed by the side file are renewed again only after it, so it ends
    /// before they are due.
    timeout: Duration,
    /// The database cannot be read, and so not be written.
    unreadable: Option<Failure>,
}

impl Unwritten<'_> {
    fn limit(&mut self, timeout: Duration) {
        self.timeout = self.timeout.min(timeout);
    }
}

impl SqliteSession {
    pub(crate) fn new(client: Arc<Client>) -> SqliteSession {
        SqliteSession { client, unread_evictions: Mutex::default() }
    }

    /// Renews by the side file, and confirms what rests on that alone.
    fn renew_leases<'a>(&self, due: &'a [Arc<Claim>]) -> Result<Unwritten<'a>, Failure> {
        let client = &self.client;
        let sent = client.now().boot;
        let renewed_at = client.renew(sent, 0)?;
        let mut unwritten = Unwritten { claims: Vec::new(), timeout: BUSY_TIMEOUT, unreadable: None };
        if due.iter().any(|claim| claim.validity.is_confirmed()) {
            // After the time was noted: an eviction that this look misses counts its last lease from later than `sent`.
            self.check_evictions()?;
            match self.check_rows(due) {
                Err(failure) if failure.is_unreadable() => unwritten.unreadable = Some(failure),
                checked => checked?,
            }
        }
        for claim in due.iter().filter(|claim| !claim.is_leaving()) {
            let ttl = claim.ttl();
            let in_row = Duration::from_nanos(claim.note.load(Ordering::SeqCst));
            if !claim.validity.is_confirmed() {
                let ttl = Duration::from_nanos(WAITING_TTL);
                claim.validity.waiting(moment(renewed_at), ttl);
                // Each try to write the rows renews the side file, and so the position. Only the next look at the queue comes later.
                unwritten.limit(ttl);
            } else if ttl <= in_row {
                // A lease that became shorter may stay longer in the row.
                claim.confirm(moment(renewed_at), ttl);
                unwritten.limit(ttl / 6);
            } else {
                unwritten.claims.push(claim);
                if !in_row.is_zero() {
                    // The row says this much already.
                    claim.confirm(moment(renewed_at), in_row);
                    unwritten.limit(in_row / 2);
                }
            }
        }
        Ok(unwritten)
    }

    /// Ends the claims whose rows are gone or evicted, because a message that names one may not have arrived. If the database is busy even
    /// for readers, the next round looks again: another process recovers its log, or another thread of this one is in a slow commit.
    fn check_rows(&self, due: &[Arc<Claim>]) -> Result<(), Failure> {
        let client = &self.client;
        let looked = client.database.try_read_from_file(|db| {
            let now = client.runtime.clock().now();
            for claim in due.iter().filter(|claim| claim.validity.is_confirmed()) {
                if let State::Lost(_) = claim.validity.state(now) {
                    continue;
                }
                let id = claim.id.as_u128().to_be_bytes();
                match rows::find(db, claim.want().name.as_str(), &id)? {
                    _ if claim.is_leaving() => {}
                    Some(row) if row.is_evicted() => claim.validity.end(Loss::Evicted),
                    Some(_) => {}
                    None => claim.validity.end_with(
                        Loss::Deleted,
                        "its row is gone: it was evicted or deleted, or the database was overwritten",
                    ),
                }
            }
            Ok(())
        });
        match looked {
            Err(Failure::Busy) => Ok(()),
            Err(failure) if failure.is_damage() => {
                client.give_up(&format!("{} was overwritten", client.path().display()));
                Err(failure)
            }
            looked => looked,
        }
    }

    /// Somebody has evicted a claim of this process, or so the path says: looks which.
    fn check_evictions(&self) -> Result<(), Failure> {
        let client = &self.client;
        let path = client.eviction_file(client.key);
        let mut unread = self.unread_evictions.lock();
        let text = eviction_file::read(&path);
        match std::fs::remove_file(&path) {
            Ok(()) => unread.get_or_insert_default().push_str(&text),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e.into()),
        }
        let Some(text) = &*unread else { return Ok(()) };
        // The path was removed first, so that an eviction during the look leaves a new one.
        client.database.read(|db| {
            for waiter in client.tracked() {
                let claim = &waiter.claim;
                if claim.validity.ended().is_some() {
                    continue;
                }
                match rows::find(db, waiter.name(), &waiter.id())? {
                    // It may have been granted, and not know it yet.
                    Some(row) if !row.is_evicted() => {}
                    None if claim.is_leaving() || !claim.validity.is_confirmed() => {}
                    // Without a row it was thrown out at once.
                    _ => waiter.evict(eviction_file::reason_of(text, &waiter.id())),
                }
            }
            Ok(())
        })?;
        *unread = None;
        Ok(())
    }

    /// Renews those whose row has to change.
    fn renew_rows(&self, claims: &[&Arc<Claim>]) -> Result<(), Failure> {
        let client = &self.client;
        let now = client.now();
        // This may be a later try than the round's first: others judge a row that is longer now by the time in the side file.
        let renewed_at = client.renew(now.boot, 0)?;
        let kept = client.database.try_write(|db| {
            let liveness = client.liveness(now);
            claims.iter().map(|claim| lease::keep(db, &liveness, claim)).collect::<Result<Vec<_>, Failure>>()
        })?;
        for (claim, kept) in claims.iter().zip(kept) {
            match kept {
                lease::Renewed::For { ttl, in_row } => {
                    if !in_row {
                        claim.note.fetch_max(nanos(ttl), Ordering::SeqCst);
                    }
                    claim.confirm(moment(if in_row { now.boot } else { renewed_at }), ttl);
                }
                lease::Renewed::Lost(why) => claim.validity.end(why),
            }
        }
        Ok(())
    }

    /// The net below: rings for those of our waiters whose turn it is, in case nobody else did. The first in the queue looks in
    /// every round, once a second; the others in every third.
    fn poll(&self, due: &[Arc<Claim>]) -> Result<(), Failure> {
        let mut waiters: Vec<Arc<TrackedClaim>> =
            self.waiters_of(due).filter(|waiter| waiter.is_poll_due()).collect();
        waiters.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        for waiters in waiters.chunk_by(|a, b| a.name() == b.name()) {
            self.poll_resource(waiters[0].name(), waiters)?;
        }
        Ok(())
    }

    fn waiters_of(&self, due: &[Arc<Claim>]) -> impl Iterator<Item = Arc<TrackedClaim>> {
        let waiting = due.iter().filter(|claim| !claim.validity.is_confirmed());
        waiting.filter_map(|claim| self.client.waiters.get(claim.id))
    }

    fn poll_resource(&self, name: &str, waiters: &[Arc<TrackedClaim>]) -> Result<(), Failure> {
        let client = &self.client;
        let now = client.now();
        let (queue, in_line) = client.database.try_read(|db| {
            let queue = queue::state(db, &mut client.liveness(now), name)?;
            Ok((queue, rows::ids_of(db, name, client.key)?))
        })?;
        let to_wake = if queue.needs_repair {
            client.database.try_write(|db| queue::next(db, &mut client.liveness(now), name))?
        } else {
            queue.to_wake
        };
        for waiter in waiters {
            waiter.set_first(queue.first == Some(waiter.id()));
            // Others remove the row of a claim that asks for more permits than a stored limit, and the rows of a process that was stopped.
            // No later release tells such a claim that its turn has come.
            if !in_line.contains(&waiter.id()) {
                waiter.wake();
            }
        }
        // Somebody who came later may have been granted the lock together with us.
        let ours = to_wake.iter().chain(&queue.holders).filter(|turn| turn.process == client.key);
        for waiter in ours.filter_map(|turn| waiters::find(&client.waiters, &turn.id)) {
            if !waiter.claim.validity.is_confirmed() {
                waiter.wake();
            }
        }
        Ok(())
    }
}

impl Session for SqliteSession {
    fn id(&self) -> u64 {
        self.client.key.number()
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        let unwritten = match self.renew_leases(due) {
            Ok(unwritten) => unwritten,
            Err(failure) => return Reply::ready(Err(failure.at(self.client.path()))),
        };
        if let Some(failure) = unwritten.unreadable {
            // For each further look SQLite would wait for 10 s, too.
            let is_done = unwritten.claims.is_empty();
            return Reply::ready(if is_done { Ok(()) } else { Err(failure.at(self.client.path())) });
        }
        // A poll that fails must not fail the round, because the leases are renewed.
        if let Err(failure) = self.poll(due) {
            tracing::debug!(?failure, "the line could not be looked at");
            // A database that is busy is looked at again in the next round. Any other failure is for the callers to see.
            if !matches!(failure, Failure::Busy) && !failure.is_unreadable() {
                self.waiters_of(due).for_each(|waiter| waiter.wake());
            }
        }
        if unwritten.claims.is_empty() {
            return Reply::ready(Ok(()));
        }
        self.client.retry_while_busy(unwritten.timeout, move || self.renew_rows(&unwritten.claims))
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
