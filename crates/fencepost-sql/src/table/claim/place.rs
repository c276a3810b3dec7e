//! Implements core's [`Place`]: what is asked of the database for one claim.

use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Claim, Conversion, Error, ErrorKind, Found, Leave, Left, Mode, Place, Removed, Request, Result,
    Session, Token,
};
use futures_util::future::try_join;

use crate::failure::Failure;
use crate::table::claim::convert::{self, Upgraded};
use crate::table::claim::fixed::watch_fixed;
use crate::table::claim::record::{has_own_lease, set_own_lease};
use crate::table::claim::request::{self, Outcome};
use crate::table::claim::waiter::{ClaimRow, Waiter};
use crate::table::client::TableClient;
use crate::table::session::{SessionRow, TableSession};

/// The shortest lease of a claim in the line, for claims whose own lease is not renewed.
const MIN_QUEUED: Duration = Duration::from_secs(5);

/// When a withdrawn claim is looked for whose request got no reply: each pause follows the one before.
const LATE: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(60)];

pub(crate) struct TablePlace {
    asker: Asker,
    attaches: bool,
}

/// Asks for one claim. Requests that outlive their caller have a copy of it.
#[derive(Clone)]
struct Asker {
    client: Arc<TableClient>,
    waiter: Arc<Waiter>,
}

impl TablePlace {
    pub(crate) fn new(client: &Arc<TableClient>, claim: Arc<Claim>, attaches: bool) -> TablePlace {
        TablePlace { asker: Asker { client: Arc::clone(client), waiter: Waiter::new(claim) }, attaches }
    }
}

impl Asker {
    fn claim(&self) -> &Arc<Claim> {
        &self.waiter.claim
    }

    fn error(&self, failure: Failure) -> Error {
        failure.on(self.client.engine)
    }

    /// Returns the session of all requests of the claim: its row may be that of any of them.
    async fn session(&self) -> Result<Arc<SessionRow>, Failure> {
        let database = &self.client.database;
        if let Some(session) = self.waiter.session.get() {
            database.ready_to_renew().await?;
            return Ok(Arc::clone(session));
        }
        let claim = self.claim();
        let ttl = if claim.renewed { claim.ttl() } else { claim.ttl().max(MIN_QUEUED) };
        // The session's statement takes the idle connection, so that the other one is opened meanwhile.
        let (session, ()) = try_join(self.client.session(ttl), database.ready_to_renew()).await?;
        session.insert(&self.waiter);
        Ok(Arc::clone(self.waiter.session.get_or_init(|| session)))
    }

    /// Takes up a detached lease, or extends it. A reply that comes too late removes nothing, because others may count on the lease.
    async fn attach(self) -> Result<Attempt> {
        self.client.database.ready_to_renew().await.map_err(|failure| self.error(failure.certain()))?;
        let outcome =
            request::attach(&self.client, self.claim()).await.map_err(|failure| self.error(failure))?;
        self.note(&outcome);
        Ok(match outcome {
            Outcome::Granted { token, .. } if self.claim().is_valid() => Attempt::Granted(token),
            _ => Attempt::Gone,
        })
    }

    async fn ask(self) -> Result<Attempt> {
        // No statement of the claim has been sent, so a failure has certainly had no effect on it, whatever became of its session.
        let session = self.session().await.map_err(|failure| self.error(failure.certain()))?;
        if self.claim().is_leaving() {
            // Its caller went away before anything was sent.
            return Err(Error::new(ErrorKind::Closed, "the claim was withdrawn").on(self.client.engine));
        }
        let mut outcome = self.ask_in(&session).await.map_err(|failure| self.error(failure))?;
        if matches!(outcome, Outcome::Granted { .. }) && self.waiter.take_doubtful() {
            // It may have been evicted before its reply arrived.
            outcome = self.ask_in(&session).await.map_err(|failure| self.error(failure).unknown())?;
        }
        // Core looks at the lease itself, and gives up after some grants of which nothing was left.
        self.attempt(outcome).await
    }

    async fn ask_in(&self, session: &Arc<SessionRow>) -> Result<Outcome, Failure> {
        // A claim that has a row does not get another one.
        let row = match self.waiter.row() {
            ClaimRow::Unknown | ClaimRow::Gone => None,
            ClaimRow::Queued(row) => Some(row),
            ClaimRow::Holding { .. } | ClaimRow::Marked(_) => Some(0),
        };
        let outcome = request::ask(&self.client, &self.waiter, session, row).await;
        match &outcome {
            Ok(outcome) => self.note(outcome),
            Err(failure) if failure.uncertain => {
                self.waiter.set_unanswered();
                // A row that the lost statement makes, now or later, ends with this session.
                self.client.retire(session);
            }
            Err(_) => {}
        }
        outcome
    }

    fn note(&self, outcome: &Outcome) {
        let claim = self.claim();
        self.set_row(match *outcome {
            Outcome::Granted { in_lock_row, sent, .. } => {
                // An extension of a lease has its own lease already, and tells nobody of an eviction.
                let begins = !claim.renewed && !has_own_lease(claim);
                if begins {
                    set_own_lease(claim);
                }
                claim.confirm(sent, claim.ttl());
                if begins {
                    let (client, waiter) = (Arc::downgrade(&self.client), Arc::downgrade(&self.waiter));
                    claim.runtime.spawn(watch_fixed(client, waiter, claim.ttl()));
                }
                self.client.listen_soon();
                ClaimRow::Holding { in_lock_row }
            }
            Outcome::Blocked { row: Some(row), .. } => {
                if let Some(session) = self.waiter.session.get() {
                    claim.validity.waiting(session.sent(), session.ttl);
                }
                ClaimRow::Queued(row)
            }
            Outcome::Blocked { row: None, .. } => ClaimRow::Unknown,
            Outcome::Gone | Outcome::AboveLimit(_) => ClaimRow::Gone,
        });
    }

    /// Notes the claim's row. From now on messages about this row are for this claim.
    fn set_row(&self, row: ClaimRow) {
        if let ClaimRow::Queued(row) | ClaimRow::Marked(row) = self.waiter.set_row(row) {
            self.client.unqueue(row);
        }
        if let ClaimRow::Queued(row) | ClaimRow::Marked(row) = row {
            self.client.queue(row, &self.waiter);
        }
    }

    async fn attempt(&self, outcome: Outcome) -> Result<Attempt> {
        Ok(match outcome {
            Outcome::Granted { token, .. } => {
                if !self.claim().is_valid() {
                    // The row may still be alive at the database, where it would block the next claim of the same call.
                    let removed = request::remove(&self.client, self.claim(), true).await;
                    removed.map_err(|failure| self.error(failure).unknown())?;
                    self.set_row(ClaimRow::Gone);
                }
                Attempt::Granted(token)
            }
            Outcome::Blocked { next_look, .. } => Attempt::Blocked { next_attempt: Some(next_look) },
            Outcome::Gone => Attempt::Gone,
            Outcome::AboveLimit(limit) => return Err(Error::over_limit(limit).on(self.client.engine)),
        })
    }

    async fn leave(self) -> Result<Left> {
        let claim = self.claim();
        let in_lock_row = match self.waiter.row() {
            ClaimRow::Queued(_) | ClaimRow::Marked(_) => false,
            ClaimRow::Holding { in_lock_row } => in_lock_row,
            ClaimRow::Unknown | ClaimRow::Gone => claim.want().mode == Mode::Exclusive,
        };
        let removed = request::remove(&self.client, claim, in_lock_row).await;
        let removed = removed.map_err(|failure| self.error(failure))?;
        if self.waiter.take_unanswered() {
            let (client, claim) = (Arc::downgrade(&self.client), Arc::clone(claim));
            self.client.runtime.spawn(remove_late(client, claim));
        }
        // A row that is found does not prove that the claim was valid, because its session may keep it beyond the claim's lease.
        let found = if removed == Removed::Nothing { Found::Missing } else { Found::There };
        Ok(Left { found, ..removed.into() })
    }

    async fn detach(self) -> Result<Left> {
        self.waiter.set_leaving();
        let detached = request::detach(&self.client, self.claim()).await;
        let detached = detached.map_err(|failure| self.error(failure))?;
        Ok(if detached { Found::There } else { Found::Missing }.into())
    }

    /// Stops listening to messages about an upgrade that waits.
    fn forget_mark(&self) {
        if let ClaimRow::Marked(_) = self.waiter.row() {
            self.set_row(ClaimRow::Holding { in_lock_row: false });
        }
    }

    async fn upgrade(self, join: bool) -> Result<Attempt> {
        self.waiter.clear_woken();
        let upgraded = convert::upgrade(&self.client, self.claim(), join).await;
        self.forget_mark();
        Ok(match upgraded.map_err(|failure| self.error(failure))? {
            Upgraded::Exclusive(token) => Attempt::Granted(token),
            Upgraded::Blocked { row, next_look } => {
                self.set_row(ClaimRow::Marked(row));
                Attempt::Blocked { next_attempt: Some(next_look) }
            }
            Upgraded::Conflict => {
                return Err(Error::upgrade_conflict(self.claim().want().name.clone()).on(self.client.engine));
            }
            Upgraded::Gone => Attempt::Gone,
        })
    }

    async fn downgrade(self, token: Token) -> Result<Attempt> {
        self.forget_mark();
        let shared = convert::downgrade(&self.client, self.claim(), token).await;
        if !shared.map_err(|failure| self.error(failure))? {
            return Ok(Attempt::Gone);
        }
        // It has a row of the queue now.
        self.set_row(ClaimRow::Holding { in_lock_row: false });
        Ok(Attempt::Granted(token))
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

impl Place for TablePlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        // The request outlives its caller, because the claim can leave only once the effect of the request is known.
        let asker = self.asker.clone();
        if self.attaches { Request::kept(asker.attach()) } else { Request::kept(asker.ask()) }
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.asker.waiter.poll_woken(cx)
    }

    fn leave(&mut self, how: Leave, _may_have_left: bool) -> Request<'_, Left> {
        let asker = self.asker.clone();
        match how {
            Leave::Detach => Request::kept(asker.detach()),
            _ if asker.waiter.row() == ClaimRow::Gone => Request::ready(Ok(Found::Missing.into())),
            Leave::Withdraw | Leave::Release => Request::kept(asker.leave()),
        }
    }

    fn session(&self, _holds: bool) -> Option<Arc<dyn Session>> {
        let Asker { client, waiter } = &self.asker;
        match waiter.session.get() {
            Some(session) => Some(Arc::new(TableSession::of(Arc::clone(session)))),
            None => self.attaches.then(|| Arc::new(client.row_session()) as Arc<dyn Session>),
        }
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        // The next request of the claim must not overtake this one: a late mark would stay until the claim ends.
        let asker = self.asker.clone();
        match to {
            Conversion::Exclusive { join } => Request::kept(asker.upgrade(join)),
            Conversion::Shared { token } => Request::kept(asker.downgrade(token)),
            Conversion::Raise { .. } => Request::ready(Err(Error::new(
                ErrorKind::Unsupported,
                "a lease table has no way to raise a token",
            )
            .on(asker.client.engine))),
        }
    }

    fn abandon(&mut self, _asking: bool) {
        // Nobody removes the row any more, so it has to expire with its session, which no new claim may join.
        if let Some(session) = self.asker.waiter.session.get()
            && self.asker.waiter.row() != ClaimRow::Gone
        {
            self.asker.client.retire(session);
        }
    }
}

impl Drop for TablePlace {
    fn drop(&mut self) {
        self.asker.set_row(ClaimRow::Gone);
        if let Some(session) = self.asker.waiter.session.get() {
            session.remove(self.asker.claim());
        }
    }
}
