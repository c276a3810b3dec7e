//! Implements core's [`Place`]: what is asked of the server for one claim.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::task::{Context, Poll};

use fencepost_core::{Attempt, Claim, Found, Leave, Left, Place, Request, Result, Session, Token};

use crate::claim::attach::attach;
use crate::claim::enter::{Outcome, enter, hold};
use crate::claim::eviction;
use crate::claim::lease_change::{Moved, Purpose};
use crate::claim::session::EtcdSession;
use crate::claim::state::{ClaimState, Phase};
use crate::claim::withdraw::{clean_up, leave_queue, release_detached, withdraw};
use crate::client::{EtcdClient, TRIES};
use crate::error::Failed;
use crate::guarded::Held;
use crate::keys;

pub(crate) struct EtcdPlace {
    client: Arc<EtcdClient>,
    claim: Arc<Claim>,
    /// It takes over the key of a detached claim.
    attaches: bool,
    /// From the first request on.
    state: Option<Arc<ClaimState>>,
    native: Option<Held>,
}

impl EtcdPlace {
    pub(crate) fn new(client: &Arc<EtcdClient>, claim: Arc<Claim>, attaches: bool) -> EtcdPlace {
        EtcdPlace { client: Arc::clone(client), claim, attaches, state: None, native: None }
    }
}

/// Asks for the lock, or for what is known since the last reply.
async fn ask(client: Arc<EtcdClient>, state: Arc<ClaimState>) -> Result<Attempt> {
    let answer = ask_in_steps(&client, &state).await;
    // A step that certainly failed undoes no earlier one: the key may exist.
    Ok(answer.map_err(|failure| if state.is_number_used() { failure.unknown() } else { failure })?)
}

async fn ask_in_steps(client: &Arc<EtcdClient>, state: &Arc<ClaimState>) -> Result<Attempt, Failed> {
    if state.phase() == Phase::New {
        match enter(Arc::clone(client), Arc::clone(state)).await? {
            Outcome::First(revision) => state.set_phase(Phase::Granted(revision)),
            Outcome::Queued(revision) => client.wait(state, revision),
            Outcome::Busy => {
                // A repeated request may still arrive.
                if state.create_unanswered.load(Relaxed) {
                    withdraw(client, state).await?;
                }
                return Ok(Attempt::Blocked { next_attempt: None });
            }
            Outcome::Gone => state.set_phase(Phase::Gone),
        }
        if state.is_evicted() {
            eviction::evicted(client, Arc::clone(state));
        }
    }
    Ok(match state.phase() {
        Phase::Granted(revision) if hold(client, state, revision).await? => granted(revision),
        Phase::Holding(revision) => granted(revision),
        Phase::Queued(_) => queued(state),
        Phase::Granted(_) | Phase::New | Phase::Gone => Attempt::Gone,
    })
}

fn queued(state: &ClaimState) -> Attempt {
    let claim = &state.claim;
    let Some(lease) = state.lease().filter(|lease| !lease.is_over(claim.runtime.clock().now())) else {
        state.lose(claim.runtime.session_loss());
        return Attempt::Gone;
    };
    claim.validity.waiting(lease.sent(), claim.ttl().min(lease.ttl));
    Attempt::Blocked { next_attempt: Some(lease.until()) }
}

fn granted(revision: i64) -> Attempt {
    Attempt::Granted(Token::new(revision.unsigned_abs()))
}

/// Deletes the claim's key.
async fn delete(
    client: Arc<EtcdClient>,
    state: Arc<ClaimState>,
    may_have_left: bool,
) -> Result<Left, Failed> {
    let deletion = withdraw(&client, &state).await?;
    if deletion.found && !deletion.repeated && !may_have_left {
        state.key_used.store(false, Relaxed);
    }
    Ok(deletion.left())
}

/// Moves the key to a lease that ends by itself. An evicted claim is not detached, because nobody could be told of the eviction then.
async fn detach(client: Arc<EtcdClient>, state: Arc<ClaimState>) -> Result<Left> {
    let Phase::Holding(revision) = state.phase() else { return Ok(Found::Missing.into()) };
    state.detaching.store(true, Release);
    // Another program that has the text of the claim's lease may count on all of the time that the present one has.
    let known = state.lease().filter(|_| state.claim.is_lease_given());
    let mut least = state.claim.ttl().max(known.map(|known| known.ttl).unwrap_or_default());
    let mut moved = Moved::Superseded;
    for _ in 0..TRIES {
        let lease = client.leases.dedicated(least).await?;
        moved = eviction::change_lease(&client, &state, revision, &lease, Purpose::Detach).await?;
        let Moved::Outlived(most) = moved else { break };
        least = most.since(client.now());
    }
    let found = match moved {
        Moved::Done => Found::There,
        Moved::Outlived(_) => return Err(Failed::contested().into()),
        Moved::Gone | Moved::Evicted | Moved::Ended | Moved::Superseded => Found::Missing,
    };
    Ok(found.into())
}

impl Place for EtcdPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        let state = Arc::clone(self.state.get_or_insert_with(|| self.client.add(&self.claim)));
        let client = Arc::clone(&self.client);
        match state.phase() {
            _ if self.attaches => {
                Request::kept(async move { Ok(attach(client, state).await?.map_or(Attempt::Gone, granted)) })
            }
            // The watch has told these; no request is needed.
            Phase::Queued(_) => Request::ready(Ok(queued(&state))),
            Phase::Gone => Request::ready(Ok(Attempt::Gone)),
            Phase::New | Phase::Granted(_) | Phase::Holding(_) => Request::kept(ask(client, state)),
        }
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.state.as_ref().map_or(Poll::Pending, |state| state.poll(cx))
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        let client = Arc::clone(&self.client);
        match self.state.clone().filter(|state| state.key().is_some()) {
            Some(state) if how == Leave::Detach => Request::kept(detach(client, state)),
            Some(state) => Request::kept(async move { Ok(delete(client, state, may_have_left).await?) }),
            None if self.attaches => {
                let (queue, id) =
                    (keys::queue(&client.config.prefix, &self.claim.want().name), self.claim.id);
                Request::kept(async move { Ok(release_detached(&client, &queue, id).await?.left()) })
            }
            None => Request::ready(Ok(Found::Missing.into())),
        }
    }

    fn session(&self, _holds: bool) -> Option<Arc<dyn Session>> {
        let state = self.state.as_ref()?;
        if matches!(state.phase(), Phase::New | Phase::Gone) {
            return None;
        }
        Some(Arc::new(EtcdSession { client: Arc::downgrade(&self.client), lease: state.lease()? }))
    }

    fn abandon(&mut self, asking: bool) {
        let Some(state) = self.state.as_ref().filter(|state| state.key().is_some()) else { return };
        if asking {
            // The request may have been sent, and may arrive behind the deletion.
            state.create_unanswered.store(true, Relaxed);
        }
        // The cleanup that core gave up continues here: other claims may renew a shared lease without end, and the key with it.
        if !self.attaches && state.is_number_used() {
            clean_up(&self.client, Arc::clone(state));
        }
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        let state = self.state.as_ref()?;
        let Phase::Holding(revision) = state.phase() else { return None };
        let held = Held::new(&self.client, &self.claim, state.key()?, revision);
        Some(self.native.insert(held))
    }
}

impl Drop for EtcdPlace {
    fn drop(&mut self) {
        if let Some(state) = &self.state {
            leave_queue(&self.client, state);
            self.client.remove(state);
        }
    }
}
