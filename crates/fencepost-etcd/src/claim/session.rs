//! Renewal of claims: one request for each lease.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{Claim, Loss, Reply, Result, Session, State, margin};
use futures_util::{StreamExt, stream};

use crate::claim::confirm::{confirm, renew};
use crate::claim::eviction::leave_shared;
use crate::claim::state::{ClaimState, Phase};
use crate::claim::withdraw::clean_up;
use crate::client::EtcdClient;
use crate::error::Failed;
use crate::lease::Lease;

/// How many leases of a round are renewed at a time, and for how many claims of a lease requests are under way: each claim whose lease was given
/// out has one.
const AT_ONCE: usize = 64;

/// Renews claims that had one lease when they were granted or began to wait. Some may have another lease by now.
pub(crate) struct EtcdSession {
    /// The entry of each claim keeps the client alive.
    pub(crate) client: Weak<EtcdClient>,
    pub(crate) lease: Arc<Lease>,
}

impl EtcdSession {
    async fn renew(&self, due: &[Arc<Claim>]) -> Result<()> {
        let Some(client) = self.client.upgrade() else { return Ok(()) };
        let mut by_lease: BTreeMap<i64, (Arc<Lease>, Vec<Arc<ClaimState>>)> = BTreeMap::new();
        for claim in due {
            // The number may belong to another claim by now.
            let state =
                client.state(claim.note.load(Relaxed)).filter(|state| Arc::ptr_eq(&state.claim, claim));
            let Some((lease, state)) = state.and_then(|state| Some((state.lease()?, state))) else {
                continue;
            };
            // It has waited under the shared lease of this session. A fixed lease is renewed only by its user.
            if !claim.renewed && lease.dedicated && !self.lease.dedicated {
                continue;
            }
            by_lease.entry(lease.id).or_insert_with(|| (lease, Vec::new())).1.push(state);
        }
        // A single claim may be a user's extension, which needs all its time.
        let shortest = due.iter().map(|claim| claim.ttl()).min().filter(|_| due.len() > 1);
        let renewals =
            by_lease.into_values().map(|(lease, states)| renew_all(&client, lease, states, shortest));
        let renewed = stream::iter(renewals).buffer_unordered(AT_ONCE);
        // A lease or a claim that fails does not prevent the confirmation of the others.
        Ok(renewed.fold(Ok(()), async |all, one| all.and(one)).await?)
    }
}

/// Renews a lease, and confirms these claims, which have it. `shortest`: the shortest `ttl` of the round's claims, if there are several.
async fn renew_all(
    client: &Arc<EtcdClient>,
    lease: Arc<Lease>,
    states: Vec<Arc<ClaimState>>,
    shortest: Option<Duration>,
) -> Result<(), Failed> {
    let now = client.now();
    // A claim or a lease whose requests take long does not hold up the next renewal of the others. What is under way goes on.
    let last = states.iter().map(|state| state.claim.validity.until()).max().unwrap_or_default();
    let all = lease.until().max(last).max(now);
    let until = shortest.map_or(all, |shortest| now + shortest / 2);
    let renewed = client.runtime.clock().within(until, renew_lease(client, &lease, &states, shortest)).await;
    if let Err(failure) = renewed.unwrap_or_else(|| Err(Failed::unanswered())) {
        // An earlier renewal may have been answered since its round was over.
        states.iter().for_each(|state| confirm_known(state, &lease));
        return Err(failure);
    }
    end_expired(client, &lease);
    let until = shortest.map_or(all, |shortest| client.now() + shortest / 3);
    let confirmations = states.into_iter().map(|state| {
        let (client, lease) = (Arc::clone(client), Arc::clone(&lease));
        async move {
            let confirmation = confirm_one(&client, &state, &lease);
            let confirmed = client.runtime.clock().within(until, confirmation).await;
            confirmed.unwrap_or_else(|| Err(Failed::unanswered()))
        }
    });
    let confirmed = stream::iter(confirmations).buffer_unordered(AT_ONCE);
    confirmed.fold(Ok(()), async |all, one| all.and(one)).await
}

/// Deletes the keys of claims that are lost although their lease goes on: it may be longer than they asked for, because it has whole
/// seconds, and other claims renew it. Their guards may be kept for as long as the program runs.
fn end_expired(client: &Arc<EtcdClient>, lease: &Lease) {
    for state in client.claims_that(|state| state.may_have_given(lease.id)) {
        let lost = || state.claim.validity.state(client.now()) == State::Lost(Loss::Expired);
        let Phase::Holding(revision) = state.phase() else { continue };
        if !lost() {
            continue;
        }
        state.set_phase(Phase::Gone);
        if !state.claim.is_lease_given() {
            clean_up(client, state);
        } else if !state.ends_by_itself() {
            // Another program may count on the key. It needs a lease that other claims do not renew.
            leave_shared(client, state, revision);
        }
    }
}

/// Confirms a claim for what is known of the lease that its key certainly has.
fn confirm_known(state: &ClaimState, lease: &Lease) {
    let (claim, sent) = (&state.claim, lease.sent());
    let ttl = claim.ttl();
    let is_news = sent + ttl.saturating_sub(margin(ttl)) > claim.validity.until();
    if is_news && ttl <= lease.ttl && matches!(state.phase(), Phase::Holding(_)) && state.certainly_has(lease)
    {
        claim.confirm(sent, ttl);
    }
}

async fn renew_lease(
    client: &EtcdClient,
    lease: &Arc<Lease>,
    states: &[Arc<ClaimState>],
    shortest: Option<Duration>,
) -> Result<(), Failed> {
    let now = client.now();
    let ttl = states.iter().map(|state| state.claim.ttl()).min().unwrap_or(lease.ttl).min(lease.ttl);
    // Several claims that are due one after the other need one renewal.
    let is_fresh = shortest.is_some() && lease.sent() + ttl / 6 > now && !lease.is_over(now);
    // If the lease is gone, the claims are told that certainly have it. The others have another one, or get it.
    if !is_fresh && renew(client, lease, ttl).await? && shortest.is_none() && lease.sent() < now {
        // A user's extension counts from now on, and that renewal was under way already.
        renew(client, lease, ttl).await?;
    }
    Ok(())
}

async fn confirm_one(client: &Arc<EtcdClient>, state: &Arc<ClaimState>, lease: &Lease) -> Result<(), Failed> {
    let claim = &state.claim;
    // The key of a claim that was evicted during this round has another lease soon.
    if claim.validity.ended().is_some() {
        return Ok(());
    }
    match state.phase() {
        Phase::Holding(revision) => confirm(client, state, revision, lease).await?,
        Phase::Gone | Phase::New => {}
        Phase::Queued(_) | Phase::Granted(_) => {
            claim.validity.waiting(lease.sent(), claim.ttl().min(lease.ttl));
        }
    }
    Ok(())
}

impl Session for EtcdSession {
    fn id(&self) -> u64 {
        self.lease.id.unsigned_abs()
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(self.renew(due))
    }
}
