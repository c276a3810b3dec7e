//! Implements core's [`Entry`]: one claim at the database.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{Attempt, Claim, Entry, Error, Loss, Removed, Renewal, Reply, Result, State, Token};
use futures_util::future::{BoxFuture, try_join};

use crate::failure::Failure;
use crate::table::claim::request::{self, Outcome};
use crate::table::claim::turn::{self, Upgraded};
use crate::table::claim::waiter::Waiter;
use crate::table::client::TableClient;
use crate::table::session::{SessionRow, TableSession};

/// The shortest lease of a place in the line, for claims whose own lease is not renewed.
const MIN_PLACE: Duration = Duration::from_secs(5);

/// A request under way.
type Asking = BoxFuture<'static, Result<Outcome, Failure>>;

/// When a withdrawn claim is looked for whose request got no reply: each pause follows the one before.
const LATE: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(60)];

pub(crate) struct TableEntry {
    client: Arc<TableClient>,
    waiter: Arc<Waiter>,
    attached: bool,
    /// The session that its row refers to.
    session: Option<Arc<SessionRow>>,
    phase: Phase,
    /// A request under way. It outlives the future of an attempt, because its effect must be known before the claim is withdrawn.
    asking: Option<Asking>,
    removing: Option<BoxFuture<'static, Result<Removed, Failure>>>,
    removed: Option<Removed>,
    /// The first request to withdraw was made: while the claim was valid, or not.
    was_valid: Option<bool>,
    /// A request to withdraw got no reply, and may have taken effect.
    uncertain: bool,
    /// A request for the lock got no reply, and may take effect later.
    unanswered: bool,
    /// Its row, while an upgrade waits for messages about it.
    upgrading: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    New,
    /// A request was sent, and its effect is unknown.
    Asked,
    Queued(i64),
    Holding {
        in_lock_row: bool,
    },
    Gone,
}

impl TableEntry {
    pub(crate) fn new(client: &Arc<TableClient>, claim: Arc<Claim>, attached: bool) -> TableEntry {
        TableEntry {
            client: Arc::clone(client),
            waiter: Waiter::new(claim),
            attached,
            session: None,
            phase: Phase::New,
            asking: None,
            removing: None,
            removed: None,
            was_valid: None,
            uncertain: false,
            unanswered: false,
            upgrading: None,
        }
    }

    fn claim(&self) -> &Arc<Claim> {
        &self.waiter.claim
    }

    /// Sends a request, or waits for the reply of the one that was sent.
    async fn ask(&mut self) -> Result<Outcome, Failure> {
        if self.session.is_none() && !self.attached {
            // All requests of a claim name the same session: its row may be that of any of them.
            let claim = self.claim();
            let ttl = if claim.renewed { claim.ttl() } else { claim.ttl().max(MIN_PLACE) };
            // The session's statement takes the idle connection, so that the other one is opened meanwhile.
            let ready = self.client.database.ready_to_renew();
            let (session, ()) = try_join(self.client.session(ttl), ready).await?;
            session.insert(&self.waiter);
            self.session = Some(session);
        }
        if self.asking.is_none() {
            self.client.database.ready_to_renew().await?;
            let (client, waiter) = (Arc::clone(&self.client), Arc::clone(&self.waiter));
            let session = self.session.clone();
            // A claim that has a row does not get another one.
            let row = match self.phase {
                Phase::Queued(row) => Some(row),
                Phase::Holding { .. } => Some(0),
                Phase::New | Phase::Asked | Phase::Gone => None,
            };
            self.asking = Some(Box::pin(async move {
                match &session {
                    Some(session) => request::ask(&client, &waiter, session, row).await,
                    None => request::attach(&client, &waiter.claim).await,
                }
            }));
        }
        if self.phase == Phase::New {
            self.phase = Phase::Asked;
        }
        let asking = self.asking.as_mut().expect("it was made above");
        let outcome = asking.await;
        self.asking = None;
        match outcome {
            Ok(outcome) => {
                self.take(&outcome);
                Ok(outcome)
            }
            Err(failure) => {
                self.unanswered |= failure.uncertain;
                // A row that the lost statement makes, now or later, ends with this session.
                if let Some(session) = self.session.as_ref().filter(|_| failure.uncertain) {
                    self.client.retire(session);
                }
                Err(failure)
            }
        }
    }

    /// Notes an outcome.
    fn take(&mut self, outcome: &Outcome) {
        if let Phase::Queued(row) = self.phase {
            self.client.unqueue(row);
        }
        self.phase = match *outcome {
            Outcome::Granted { in_lock_row, sent, .. } => {
                let claim = self.claim();
                if !claim.renewed {
                    claim.note.store(1, Relaxed);
                }
                claim.confirm(sent, claim.ttl());
                self.client.listen_soon();
                Phase::Holding { in_lock_row }
            }
            Outcome::Blocked { row: Some(row), .. } => {
                self.client.queue(row, &self.waiter);
                if let Some(session) = &self.session {
                    self.claim().validity.waiting(session.sent(), session.ttl);
                }
                Phase::Queued(row)
            }
            Outcome::Blocked { row: None, .. } => Phase::New,
            Outcome::Gone | Outcome::Over(_) => Phase::Gone,
        };
    }

    async fn attempt(&mut self) -> Result<Attempt> {
        let mut outcome = self.ask().await?;
        if matches!(outcome, Outcome::Granted { .. }) && self.waiter.take_doubtful() {
            // It may have been evicted before its reply arrived.
            outcome = self.ask().await?;
        }
        let claim = self.claim();
        Ok(match outcome {
            Outcome::Granted { token, .. } => {
                match claim.validity.state(claim.runtime.clock().now()) {
                    // A pause has eaten the lease: the row is removed, and core starts again.
                    State::Lost(_) => {
                        request::remove(&self.client, claim, true).await?;
                        self.phase = Phase::Gone;
                        Attempt::Gone
                    }
                    _ => Attempt::Granted(token),
                }
            }
            Outcome::Blocked { again, .. } => Attempt::Blocked { again: Some(again) },
            Outcome::Gone => Attempt::Gone,
            Outcome::Over(limit) => return Err(Error::over_limit(limit)),
        })
    }

    async fn remove(&mut self) -> Result<Removed, Failure> {
        let validity = &self.waiter.claim.validity;
        let lost = validity.is_confirmed()
            && matches!(validity.state(self.waiter.claim.runtime.clock().now()), State::Lost(_));
        let was_valid = *self.was_valid.get_or_insert(!lost);
        self.waiter.set_leaving();
        // The statement that was sent may be granted: its reply comes first. Whatever a lost one makes is removed below, or ends with its
        // session.
        if self.asking.is_some()
            && let Err(failure) = self.ask().await
            && failure.uncertain
        {
            tracing::debug!(%failure, "a claim is withdrawn whose request had no reply");
        }
        let phase = self.phase;
        if phase == Phase::Gone || (phase == Phase::New && !self.attached) {
            return Ok(Removed::Nothing);
        }
        let removing = self.removing.get_or_insert_with(|| {
            let (client, claim) = (Arc::clone(&self.client), Arc::clone(&self.waiter.claim));
            let in_lock_row = match phase {
                Phase::Queued(_) => false,
                Phase::Holding { in_lock_row } => in_lock_row,
                Phase::New | Phase::Asked | Phase::Gone => {
                    claim.want().mode == fencepost_core::Mode::Exclusive
                }
            };
            Box::pin(async move { request::remove(&client, &claim, in_lock_row).await })
        });
        let removed = removing.await;
        self.removing = None;
        if removed.is_ok() && std::mem::take(&mut self.unanswered) {
            let (client, claim) = (Arc::downgrade(&self.client), Arc::clone(&self.waiter.claim));
            self.client.runtime.spawn(remove_late(client, claim));
        }
        match removed {
            Err(failure) => {
                self.uncertain |= failure.uncertain;
                Err(failure)
            }
            Ok(_) if !was_valid => Ok(Removed::Nothing),
            // Nobody but this claim removes a valid grant: the request without a reply did.
            Ok(Removed::Nothing) if self.uncertain && matches!(phase, Phase::Holding { .. }) => {
                Ok(Removed::Released)
            }
            Ok(removed) => Ok(removed),
        }
    }

    async fn upgrade(&mut self, join: bool) -> Result<Attempt> {
        let Phase::Holding { .. } = self.phase else { return Ok(Attempt::Gone) };
        self.waiter.clear_woken();
        let upgraded = turn::upgrade(&self.client, self.claim(), join).await;
        self.forget_upgrade();
        Ok(match upgraded.map_err(|failure| self.error(failure))? {
            Upgraded::Exclusive(token) => Attempt::Granted(token),
            Upgraded::Blocked { row, again } => {
                self.client.queue(row, &self.waiter);
                self.upgrading = Some(row);
                Attempt::Blocked { again: Some(again) }
            }
            Upgraded::Conflict => {
                let name = self.claim().want().name.clone();
                return Err(Error::upgrade_conflict(name).on(self.client.engine));
            }
            Upgraded::Gone => Attempt::Gone,
        })
    }

    async fn downgrade(&mut self, token: Token) -> Result<()> {
        self.forget_upgrade();
        if let Phase::Holding { .. } = self.phase {
            let shared = turn::downgrade(&self.client, self.claim(), token).await;
            if shared.map_err(|failure| self.error(failure))? {
                // It has a row of the queue now.
                self.phase = Phase::Holding { in_lock_row: false };
                return Ok(());
            }
        }
        Err(self.claim().gone().on(self.client.engine))
    }

    fn forget_upgrade(&mut self) {
        if let Some(row) = self.upgrading.take() {
            self.client.unqueue(row);
        }
    }

    fn error(&self, failure: Failure) -> Error {
        failure.on(self.client.engine)
    }
}

/// Removes the row that a request without a reply makes after its claim was withdrawn. A later row ends with its session.
async fn remove_late(client: Weak<TableClient>, claim: Arc<Claim>) {
    let clock = claim.runtime.clock();
    for pause in LATE {
        clock.sleep_until(clock.now() + pause).await;
        let Some(client) = client.upgrade().filter(|_| !clock.is_stopped()) else { return };
        if let Err(failure) = request::remove(&client, &claim, false).await {
            tracing::debug!(%failure, "a withdrawn claim could not be looked for");
        }
    }
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        self.forget_upgrade();
        if let Phase::Queued(row) = self.phase {
            self.client.unqueue(row);
        }
        let Some(session) = self.session.take() else { return };
        session.remove(self.claim());
        if self.removed.is_none() && !matches!(self.phase, Phase::New | Phase::Gone) {
            // Core gave up. The row ends with the session.
            self.client.retire(&session);
        }
    }
}

impl Entry for TableEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        if self.removed.is_some() || self.phase == Phase::Gone {
            return Reply::ready(Ok(Attempt::Gone));
        }
        Reply::coming(async move {
            let attempt = self.attempt().await;
            attempt.map_err(|error| error.on(self.client.engine))
        })
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.waiter.poll_woken(cx)
    }

    fn renewal(&self) -> Option<Renewal> {
        let session = match &self.session {
            Some(session) => TableSession::of(Arc::clone(session)),
            None if self.attached => self.client.row_session(),
            None => return None,
        };
        Some(Renewal { claim: Arc::clone(self.claim()), session: Arc::new(session) })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        match self.removed {
            Some(removed) => Reply::ready(Ok(removed)),
            None => Reply::coming(async move {
                let removed = self.remove().await.map_err(|failure| self.error(failure))?;
                self.removed = Some(removed);
                Ok(removed)
            }),
        }
    }

    fn upgrade(&mut self, join: bool) -> Reply<'_, Result<Attempt>> {
        Reply::coming(self.upgrade(join))
    }

    fn downgrade(&mut self, token: Token) -> Reply<'_, Result<()>> {
        Reply::coming(self.downgrade(token))
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        Reply::coming(async move {
            self.waiter.set_leaving();
            let (client, claim) = (&self.client, self.claim());
            if request::detach(client, claim).await.map_err(|failure| self.error(failure))? {
                self.removed = Some(Removed::Nothing);
                return Ok(());
            }
            let why = claim.validity.ended().unwrap_or(Loss::Deleted);
            Err(Error::lost(claim.want().name.clone(), why))
        })
    }
}
