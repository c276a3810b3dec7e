//! Sessions: a row of the client that one statement renews, with all claims that refer to it. The renewal also reads the rows of the
//! claims: an operator may have deleted one by hand.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, ClaimId, Loss, Mode, Moment, Reply, Session, SingleFlight, margin};

use crate::database::Lane;
use crate::database::with;
use crate::failure::Failure;
use crate::table::claim::record::{ANY_MODE, has_own_lease, owner, set_own_lease};
use crate::table::claim::request::{self, Fate};
use crate::table::claim::waiter::Waiter;
use crate::table::client::{TableClient, micros};
use crate::table::renewal;

/// A round sends nothing if the session is younger than this part of its lease. It is less than the third after which claims are due.
const ROUND_FRESH_PART: u32 = 4;

/// The number that a renewal returns before the first eviction. It is one more than their number: zero returns no row on MySQL.
const NO_EVICTIONS: i64 = 1;

/// The row of a session.
pub(crate) struct SessionRow {
    pub(crate) id: i64,
    pub(crate) ttl: Duration,
    client: Weak<TableClient>,
    state: Mutex<State>,
    renewing: SingleFlight<Result<bool, Failure>>,
    /// The claims that refer to it.
    claims: Mutex<HashMap<ClaimId, Arc<Waiter>>>,
}

struct State {
    /// When the last renewal was sent that was confirmed.
    sent: Moment,
    evictions: i64,
    /// The row was deleted, or its client was closed.
    ended: bool,
}

impl SessionRow {
    pub(crate) fn new(id: i64, ttl: Duration, sent: Moment, client: Weak<TableClient>) -> SessionRow {
        SessionRow {
            id,
            ttl,
            client,
            state: Mutex::new(State { sent, evictions: NO_EVICTIONS, ended: false }),
            renewing: SingleFlight::default(),
            claims: Mutex::default(),
        }
    }

    /// Returns when the last confirmed renewal was sent. Read it before a statement whose grant rests on this session.
    pub(crate) fn sent(&self) -> Moment {
        self.state.lock().sent
    }

    /// Returns how long ago the last confirmed renewal was sent.
    pub(crate) fn age(&self) -> Duration {
        match self.client.upgrade() {
            Some(client) => client.runtime.clock().now().since(self.sent()),
            None => Duration::MAX,
        }
    }

    /// Returns whether the session is certainly alive at the database.
    pub(crate) fn has_time(&self) -> bool {
        !self.state.lock().ended && self.age() < self.ttl.saturating_sub(margin(self.ttl))
    }

    /// Notes that the row is gone: what rests on it is lost, for this reason.
    pub(crate) fn set_ended(&self, why: Loss) {
        self.state.lock().ended = true;
        let claims: Vec<_> = self.claims.lock().drain().map(|(_, waiter)| waiter).collect();
        for waiter in claims {
            if waiter.claim.validity.is_confirmed() && !has_own_lease(&waiter.claim) {
                waiter.claim.validity.end(why);
            }
            waiter.wake();
        }
    }

    pub(crate) fn insert(&self, waiter: &Arc<Waiter>) {
        self.claims.lock().insert(waiter.claim.id, Arc::clone(waiter));
    }

    pub(crate) fn remove(&self, claim: &Claim) {
        let removed = self.claims.lock().remove(&claim.id);
        drop(removed);
    }

    /// Renews the row, once for all callers. `false`: it is gone.
    pub(crate) async fn renew(self: &Arc<SessionRow>) -> Result<bool, Failure> {
        let Some(client) = self.client.upgrade() else { return Ok(false) };
        let own = Arc::clone(self);
        let runtime = client.runtime.clone();
        let work = async move { own.renew_at(&client).await };
        self.renewing.join(&runtime, work).await.unwrap_or_else(|| Err(Failure::closed()))
    }

    async fn renew_at(&self, client: &Arc<TableClient>) -> Result<bool, Failure> {
        let sent = client.runtime.clock().now();
        let Some(found) = renewal::renew(client, self.id, self.ttl, self.checked()).await? else {
            client.retire(self);
            self.set_ended(Loss::Expired);
            return Ok(false);
        };
        if found.evictions != self.state.lock().evictions {
            // Evicted claims must not be confirmed by this renewal.
            self.end_evicted(client).await?;
        }
        for waiter in found.missing.iter().filter(|waiter| !waiter.is_leaving()) {
            waiter.claim.validity.end(Loss::Deleted);
        }
        self.remove_expired(client);
        let mut state = self.state.lock();
        state.evictions = found.evictions;
        state.sent = state.sent.max(sent);
        drop(state);
        if client.statements.notify.is_some() && self.holds() {
            // The connection on which messages arrive may have ended.
            let client = Arc::clone(client);
            client.runtime.clone().spawn(async move {
                client.listen().await;
            });
        }
        Ok(true)
    }

    /// Removes the rows of claims whose leases have expired: the renewal was late for them, and in time for the session. Otherwise the
    /// session would keep their locks until their guards are dropped. The work under a lost lock has the margin of the lease to stop, as
    /// where the lease ends by itself. The row of an evicted claim stays, because it has the end of the lease that the work may count on.
    fn remove_expired(&self, client: &Arc<TableClient>) {
        let is_expired = |waiter: &&Arc<Waiter>| {
            let validity = &waiter.claim.validity;
            let expired = validity.is_confirmed() && validity.ended() == Some(Loss::Expired);
            expired && !has_own_lease(&waiter.claim) && !waiter.is_leaving()
        };
        let expired: Vec<_> = self.claims.lock().values().filter(is_expired).cloned().collect();
        for waiter in expired {
            let (client, margin) = (Arc::clone(client), margin(self.ttl));
            client.runtime.clone().spawn(async move {
                let clock = client.runtime.clock();
                clock.sleep_until(clock.now() + margin).await;
                let claim = &waiter.claim;
                let left = if claim.is_lease_given() {
                    // Another program may count on the lease, which ends by itself without the session.
                    request::detach(&client, claim).await.map(drop)
                } else {
                    request::remove(&client, claim, claim.want().mode == Mode::Exclusive).await.map(drop)
                };
                match left {
                    Ok(()) => waiter.set_leaving(),
                    // The next renewal tries again.
                    Err(failure) => tracing::debug!(%failure, "a lost claim keeps its row for now"),
                }
            });
        }
    }

    /// Returns the claims that a renewal confirms: each of them must have its row. Not a claim whose lease was given out, which is renewed by
    /// itself, because another program may have detached it from the session.
    fn checked(&self) -> Vec<Arc<Waiter>> {
        let claims = self.claims.lock();
        let checked = |waiter: &&Arc<Waiter>| is_checked(waiter) && !waiter.claim.is_lease_given();
        claims.values().filter(checked).cloned().collect()
    }

    /// Returns whether one of its claims holds.
    pub(crate) fn holds(&self) -> bool {
        self.claims.lock().values().any(|waiter| is_checked(waiter))
    }

    /// Ends the claims that have lost their row or were evicted.
    async fn end_evicted(&self, client: &TableClient) -> Result<(), Failure> {
        let before: Vec<_> = self.claims.lock().values().cloned().collect();
        // A grant whose reply is on its way may be an evicted one: it is looked at again.
        before
            .iter()
            .filter(|waiter| !waiter.claim.validity.is_confirmed())
            .for_each(|waiter| waiter.set_doubtful());
        let confirmed: Vec<_> = before.iter().filter(|waiter| waiter.claim.validity.is_confirmed()).collect();
        let texts = [&client.statements.owned, &client.statements.eviction];
        let statements = texts.map(|text| with(text, vec![self.id.into()])).into();
        let results = client.run_all(statements, Lane::Renewals).await?;
        let rows = |number: usize| results.get(number).into_iter().flatten();
        let owned: HashMap<&str, bool> =
            rows(0).filter_map(|row| Some((&**row.text(0)?, row.text(1).is_some()))).collect();
        let reason: Arc<str> = rows(1).find_map(|row| row.text(0)).cloned().unwrap_or_else(|| "".into());
        for waiter in confirmed {
            let claim = &waiter.claim;
            let why = match owned.get(&*owner(claim)) {
                Some(false) => continue,
                // Another program may have detached it from the session, so the eviction may be that of another claim.
                None if claim.is_lease_given() && claim.is_valid() => {
                    match request::fate(client, claim).await? {
                        Fate::Holds => continue,
                        Fate::Evicted(why) => why,
                        Fate::Missing => Arc::clone(&reason),
                    }
                }
                Some(true) | None => Arc::clone(&reason),
            };
            if !waiter.is_leaving() {
                claim.validity.end_with(Loss::Evicted, &*why);
            }
        }
        Ok(())
    }

    async fn renew_claims(
        self: &Arc<SessionRow>,
        client: &TableClient,
        due: &[Arc<Claim>],
    ) -> Result<(), Failure> {
        // Claims that came at different times are due at different times until one renewal has confirmed all of them. A single claim may be a
        // user's extension, which needs all its time.
        let fresh = due.len() > 1 && self.has_time() && self.age() < self.ttl / ROUND_FRESH_PART;
        if !fresh && !self.renew().await? {
            due.iter().filter(|claim| claim.validity.is_confirmed() && !has_own_lease(claim)).for_each(
                |claim| {
                    claim.validity.end(Loss::Expired);
                },
            );
        }
        let sent = self.sent();
        let mut own = Vec::new();
        for claim in due {
            let ttl = claim.ttl();
            if !claim.validity.is_confirmed() {
                claim.validity.waiting(sent, self.ttl);
            } else if has_own_lease(claim) || claim.is_lease_given() || ttl > self.ttl {
                // Another program that extends a lease sets the end of its row, which then counts instead of the session's. This is asked
                // after the session's renewal, so an extension that comes later leaves the row that long at least.
                own.push(claim);
            } else if claim.validity.ended().is_none() {
                claim.confirm(sent, ttl);
            }
        }
        extend(client, &own).await
    }
}

fn is_checked(waiter: &Waiter) -> bool {
    let validity = &waiter.claim.validity;
    let holds = validity.is_confirmed() && validity.ended().is_none();
    holds && !has_own_lease(&waiter.claim) && !waiter.is_leaving()
}

impl Drop for SessionRow {
    fn drop(&mut self) {
        let ended = self.state.get_mut().ended;
        if let Some(client) = self.client.upgrade().filter(|_| !ended) {
            client.end_session(self.id);
        }
    }
}

/// Lengthens the leases of claims that have one of their own.
async fn extend(client: &TableClient, claims: &[&Arc<Claim>]) -> Result<(), Failure> {
    if claims.is_empty() {
        return Ok(());
    }
    let sent = client.runtime.clock().now();
    let ttls: Vec<_> = claims.iter().map(|claim| claim.ttl()).collect();
    let statements = claims.iter().zip(&ttls).flat_map(|(claim, ttl)| {
        let want = claim.want();
        let values = vec![
            client.stored(want.name.as_str()).into(),
            owner(claim).into(),
            micros(*ttl).into(),
            // In any mode: it may be upgraded.
            ANY_MODE.into(),
        ];
        client.statements.extend.each_ref().map(|text| with(text, values.clone()))
    });
    let rows = client.run_all(statements.collect(), Lane::Renewals).await?;
    for ((claim, ttl), rows) in claims.iter().zip(ttls).zip(rows.chunks(2)) {
        if rows.iter().all(Vec::is_empty) {
            end_unknown(client, claim).await?;
        } else {
            set_own_lease(claim);
            claim.confirm(sent, ttl);
        }
    }
    Ok(())
}

/// Ends a claim whose lease could not be lengthened, with the reason.
async fn end_unknown(client: &TableClient, claim: &Claim) -> Result<(), Failure> {
    match request::fate(client, claim).await? {
        Fate::Evicted(reason) => claim.validity.end_with(Loss::Evicted, &*reason),
        Fate::Holds | Fate::Missing => claim.validity.end(Loss::Deleted),
    }
    Ok(())
}

/// Renews claims: those of a session by its row, others one by one.
pub(crate) struct TableSession {
    client: Weak<TableClient>,
    row: Option<Arc<SessionRow>>,
}

impl TableSession {
    pub(crate) fn of(row: Arc<SessionRow>) -> TableSession {
        TableSession { client: row.client.clone(), row: Some(row) }
    }

    /// For claims whose leases are those of their rows.
    pub(crate) fn rows(client: Weak<TableClient>) -> TableSession {
        TableSession { client, row: None }
    }
}

impl Session for TableSession {
    fn id(&self) -> u64 {
        self.row.as_ref().map_or(0, |row| row.id.unsigned_abs())
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, fencepost_core::Result<()>> {
        Reply::coming(async move {
            let Some(client) = self.client.upgrade() else { return Ok(()) };
            let renewed = match &self.row {
                Some(row) => row.renew_claims(&client, due).await,
                None => extend(&client, &due.iter().collect::<Vec<_>>()).await,
            };
            renewed.map_err(|failure| failure.on(client.engine))
        })
    }
}
