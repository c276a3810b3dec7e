//! Implements core's [`Place`]: what is asked of the database for one claim.

mod upgrade;

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Claim, Conversion, Error, Found, Leave, Left, Loss, Moment, Place, Removed, Request, Result,
    Session, Token, remove_abandoned,
};

use crate::client::background::AbandonedRow;
use crate::client::session::SqliteSession;
use crate::client::{BUSY_TIMEOUT, Client, moment};
use crate::db::lease;
use crate::db::queue::{self, Outcome, Withdrawal};
use crate::db::rows;
use crate::error::Failure;
use crate::process::liveness::WAITING_TTL;
use crate::waiters::TrackedClaim;

/// A renewal younger than this is as good as a new one: it takes a fiftieth off the shortest lease at most. A process that
/// locks and releases thousands of times a second need not write one each time.
const RENEWAL_AGE: u64 = 4_000_000;

/// How long a claim that does not wait retries while another client writes the database. Core repeats the attempt a few times.
const TRY_TIMEOUT: Duration = Duration::from_millis(500);

/// Looks at a file whose lock is about to fall are this far apart.
const RECHECK_PAUSE: Duration = Duration::from_millis(5);

/// A claim's row, or the lack of one.
pub(crate) struct SqlitePlace {
    client: Arc<Client>,
    session: Arc<SqliteSession>,
    waiter: Arc<TrackedClaim>,
    /// The claim takes up a detached lease, whose row names no process.
    attaches: bool,
    /// The row's number, once known.
    seq: Option<i64>,
    /// Looks still to be taken at a process that has just closed its side file.
    rechecks: u8,
    native: Option<Holding>,
}

impl SqlitePlace {
    pub(crate) fn new(
        client: Arc<Client>,
        session: Arc<SqliteSession>,
        claim: Arc<Claim>,
        attaches: bool,
    ) -> SqlitePlace {
        let tracked = TrackedClaim::new(claim);
        // A claim that attaches must not replace a live grant with its id.
        let waiter = if attaches { Arc::new(tracked) } else { client.track(tracked) };
        SqlitePlace { client, session, waiter, attaches, seq: None, rechecks: 0, native: None }
    }

    fn id(&self) -> [u8; 16] {
        self.waiter.claim.id.as_u128().to_be_bytes()
    }

    /// Makes a request, which is one transaction, or a few of which one writes.
    fn request<'a, T: Send + Unpin + 'a>(
        &'a mut self,
        timeout: Duration,
        mut work: impl FnMut(&mut SqlitePlace) -> Result<T, Failure> + Send + 'a,
    ) -> Request<'a, T> {
        let client = Arc::clone(&self.client);
        client.retry_while_busy(timeout, move || work(self)).into()
    }

    fn ask_once(&mut self) -> Result<Attempt, Failure> {
        self.waiter.clear_woken();
        if self.attaches { self.attach() } else { self.join() }
    }

    fn join(&mut self) -> Result<Attempt, Failure> {
        let SqlitePlace { client, waiter, seq, .. } = self;
        let claim = &waiter.claim;
        if waiter.take_file_closed() {
            self.rechecks = 3;
        }
        // Before the transaction, so that nobody takes the new row for a dead one; and validity counts from here.
        let now = client.now();
        let renewed_at = client.renew(now.boot, RENEWAL_AGE)?;
        let (want, record) = (claim.want(), claim.record());
        let ttl = u64::try_from(claim.ttl().as_nanos()).unwrap_or(u64::MAX);
        let request = queue::Request {
            resource: want.name.as_str(),
            id: waiter.claim.id.as_u128().to_be_bytes(),
            mode: want.mode,
            process: client.key,
            ttl,
            join: claim.waits,
            unfair: claim.is_unfair(),
            pinned: client.pinned,
            fixed: !claim.renewed,
            sent: now.boot,
            record: &record,
            seq: *seq,
        };
        let outcome = match client.database.once(|db| queue::grant_if_free(db, &request, now.wall))? {
            Some(outcome) => outcome,
            None => {
                let ((outcome, to_wake), dead) = client.database.write(|db| {
                    let mut liveness = client.liveness(now);
                    let outcome = queue::attempt(db, &mut liveness, &request)?;
                    Ok((outcome, liveness.dead_processes().collect()))
                })?;
                client.wake(&to_wake);
                client.remove_dead(dead);
                outcome
            }
        };
        match outcome {
            Outcome::Granted { seq, token } => {
                if self.seq.replace(seq).is_some() {
                    client.watch.forget(&client.runtime, request.id);
                }
                // The lease in the row is at least this long. The end of a fixed one is in the row, so each extension changes the row.
                claim.note.store(if claim.renewed { ttl } else { 0 }, Ordering::SeqCst);
                if client.pinned {
                    // A mark that came after the last renewal has ended this grant for others. Its row is there.
                    let over = client.check_over(client.heartbeat()?);
                    over.map_err(|failure| failure.at(client.path()).unknown())?;
                }
                let sent = if claim.renewed { renewed_at } else { now.boot };
                claim.confirm(moment(sent), Duration::from_nanos(ttl));
                client.check_granted(claim)?;
                Ok(Attempt::Granted(Token::new(token)))
            }
            Outcome::Blocked { seq, blockers } => {
                self.seq = seq;
                let mut next_attempt = None;
                if seq.is_some() {
                    waiter.set_first(blockers.iter().all(|(row, _)| row.holds()));
                    claim.validity.waiting(moment(renewed_at), Duration::from_nanos(WAITING_TTL));
                    next_attempt = self.watch(&blockers);
                }
                Ok(Attempt::Blocked { next_attempt })
            }
            Outcome::Gone | Outcome::AboveLimit(_) => {
                self.seq = None;
                client.watch.forget(&client.runtime, request.id);
                match outcome {
                    Outcome::AboveLimit(limit) => Err(Error::over_limit(limit).into()),
                    _ => Ok(Attempt::Gone),
                }
            }
        }
    }

    /// Watches those on whom the claim waits, and says when to look again.
    fn watch(&mut self, blockers: &[(rows::Row, Option<u64>)]) -> Option<Moment> {
        let client = &self.client;
        let mut keys: Vec<_> =
            blockers.iter().filter_map(|(row, _)| row.process).filter(|key| *key != client.key).collect();
        keys.sort_unstable_by_key(|key| key.0);
        keys.dedup();
        let soon = client.runtime.clock().now() + RECHECK_PAUSE;
        if client.watch.follow(&client.runtime, self.waiter.claim.id.as_u128().to_be_bytes(), keys) {
            // A process that died between our read and the watch closes no file any more.
            self.rechecks = self.rechecks.max(1);
        }
        if self.rechecks > 0 {
            self.rechecks -= 1;
            return Some(soon);
        }
        // The first in the queue rechecks when a holder's lease ends; the others are woken, or find out by the poll.
        blockers
            .iter()
            .map(|(row, until)| until.filter(|_| row.holds()))
            .min_by_key(|until| until.unwrap_or(u64::MAX))
            .flatten()
            .map(moment)
    }

    fn attach(&mut self) -> Result<Attempt, Failure> {
        self.client.check_in_place()?;
        let (client, claim) = (&self.client, &self.waiter.claim);
        let now = client.now();
        let ttl = claim.ttl();
        let id = self.id();
        // Before the write, so that a release of the lease after it ends the claim. An extension needs no end, because its claim ends with
        // this answer.
        if claim.renewed {
            client.attached.insert(claim);
        }
        let token =
            client.database.write(|db| lease::extend(db, &client.liveness(now), claim.want(), &id, ttl))?;
        let Some(token) = token else { return Ok(Attempt::Gone) };
        claim.confirm(moment(now.boot), ttl);
        client.check_granted(claim)?;
        Ok(Attempt::Granted(Token::new(token)))
    }

    fn remove(&mut self) -> Result<Removed, Failure> {
        // Before the removal, because a later claim may have the id and a grant of its own then.
        let sharing = self.client.sharing(&self.waiter.claim);
        let withdrawal = self.remove_row()?;
        if withdrawal.removed == Removed::Released {
            for other in sharing {
                other.validity.end_with(Loss::Deleted, "this client has released its lease");
            }
        }
        // Only now, because the next holder may be granted the lock at once.
        self.client.wake(&withdrawal.next);
        Ok(withdrawal.removed)
    }

    fn remove_row(&mut self) -> Result<Withdrawal, Failure> {
        let client = &self.client;
        if client.database.is_given_up() {
            return Ok(Withdrawal::NOTHING);
        }
        let resource = self.waiter.claim.want().name.as_str();
        let id = self.id();
        if self.seq == Some(0) && client.database.once(|db| rows::release_if_alone(db, resource, &id))? {
            self.seq = None;
            return Ok(Withdrawal { removed: Removed::Released, next: Vec::new() });
        }
        let now = client.now();
        let (withdrawal, dead) = client.database.write(|db| {
            let mut liveness = client.liveness(now);
            let mut seq = self.seq;
            if seq.is_none() && !self.attaches {
                // A claim that is gone leaves, too, and a row with its id may be that of another client or of a detached lease.
                let own = rows::find(db, resource, &id)?.filter(|row| row.process == Some(client.key));
                let Some(own) = own else { return Ok((Withdrawal::NOTHING, Vec::new())) };
                seq = Some(own.seq);
            }
            let withdrawal = queue::withdraw(db, &mut liveness, resource, &id, seq)?;
            Ok((withdrawal, liveness.dead_processes().collect()))
        })?;
        self.seq = None;
        self.client.watch.forget(&self.client.runtime, self.id());
        self.client.remove_dead(dead);
        Ok(withdrawal)
    }

    fn detach(&mut self) -> Result<Found, Failure> {
        // Others would see nothing of a lease in removed files.
        self.client.check_in_place()?;
        let (client, claim) = (&self.client, &self.waiter.claim);
        let (now, id) = (client.now(), self.id());
        let there = client.database.write(|db| {
            lease::detach(db, &client.liveness(now), claim.want().name.as_str(), &id, claim.ttl())
        })?;
        Ok(if there { Found::There } else { Found::Missing })
    }

    fn raise(&mut self, to: Token) -> Result<Attempt, Failure> {
        let resource = self.waiter.claim.want().name.as_str();
        self.client.database.write(|db| Ok(rows::set_last_token(db, resource, to.get(), true)?))?;
        Ok(Attempt::Granted(to))
    }
}

impl Place for SqlitePlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        let timeout = if self.waiter.claim.waits { BUSY_TIMEOUT } else { TRY_TIMEOUT };
        self.request(timeout, SqlitePlace::ask_once)
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.waiter.poll_woken(cx)
    }

    fn leave(&mut self, how: Leave, _may_have_left: bool) -> Request<'_, Left> {
        self.request(BUSY_TIMEOUT, move |place| match how {
            Leave::Detach => Ok(place.detach()?.into()),
            Leave::Withdraw | Leave::Release => Ok(place.remove()?.into()),
        })
    }

    fn session(&self, _holds: bool) -> Option<Arc<dyn Session>> {
        Some(Arc::<SqliteSession>::clone(&self.session))
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        match to {
            Conversion::Exclusive { join } => {
                let timeout = if join { BUSY_TIMEOUT } else { TRY_TIMEOUT };
                self.request(timeout, move |place| place.upgrade(join))
            }
            Conversion::Shared { token } => self.request(BUSY_TIMEOUT, move |place| place.downgrade(token)),
            Conversion::Raise { to } => self.request(BUSY_TIMEOUT, move |place| place.raise(to)),
        }
    }

    fn abandon(&mut self, _asking: bool) {
        // A detached grant ends by the time in its row. If the row names a process, it is that of a live grant.
        if self.attaches {
            return;
        }
        let row = AbandonedRow::new(&self.client, &self.waiter.claim);
        remove_abandoned(&self.client.runtime, row);
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        let client = &self.client;
        let holding = self.native.get_or_insert_with(|| Holding { client: Arc::clone(client) });
        Some(holding)
    }
}

impl Drop for SqlitePlace {
    fn drop(&mut self) {
        if self.attaches {
            self.client.attached.remove(&self.waiter.claim);
        } else {
            self.client.waiters.remove(&self.waiter);
        }
        if self.seq.is_some() {
            self.client.watch.forget(&self.client.runtime, self.id());
        }
    }
}

/// The engine's own strength: what shows that this client's process lives, for others to share.
///
/// A [`Guard`](fencepost_core::Guard)'s `native()` gives it, to be downcast.
pub struct Holding {
    client: Arc<Client>,
}

impl Holding {
    /// Returns a descriptor of the locked side file. While any process has one, for example a child that inherits it, the kernel
    /// reports this client as alive. With `pinned=true` its grants then last. The descriptor is close-on-exec: clear that flag to
    /// hand it to a child.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        let heartbeat =
            self.client.heartbeat().map_err(|failure| io::Error::other(failure.at(self.client.path())))?;
        heartbeat.descriptor()
    }

    /// The path of the side file, for [`mark_over`](crate::mark_over).
    pub fn side_file(&self) -> PathBuf {
        self.client.folder.join(self.client.key.to_string())
    }
}
