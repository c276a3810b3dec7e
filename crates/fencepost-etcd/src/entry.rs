//! Implements core's [`Entry`]: one claim at the server.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use fencepost_core::{
    Attempt, Claim, ClaimRecord, Entry, Error, Found, Moment, Removed, Renewal, Reply, Result, Token,
    Withdrawal,
};
use futures_util::future::BoxFuture;

use crate::claim::attach::attach;
use crate::claim::enter::{Outcome, enter, hold};
use crate::claim::state::{ClaimState, Phase};
use crate::claim::withdraw::{clean_up, leave_queue, release_detached, withdraw};
use crate::claim::{eviction, lease_change};
use crate::client::EtcdClient;
use crate::error::Failure;
use crate::guarded::Held;
use crate::keys;
use crate::lease::session::EtcdSession;
use crate::rpc::proto::{Compare, Op, PutRequest, TxnRequest};

pub(crate) struct EtcdEntry {
    client: Arc<EtcdClient>,
    claim: Arc<Claim>,
    /// It takes over the key of a detached claim.
    attaches: bool,
    /// From the first request on.
    state: Option<Arc<ClaimState>>,
    /// A request that was sent and has no reply yet. It outlives the future of an attempt, because its effect must be known before the claim
    /// is withdrawn.
    entering: Option<BoxFuture<'static, Result<Outcome, Failure>>>,
    removed: Option<Removed>,
    withdrawal: Withdrawal,
    native: Option<Held>,
}

impl EtcdEntry {
    pub(crate) fn new(client: &Arc<EtcdClient>, claim: Arc<Claim>, attaches: bool) -> EtcdEntry {
        EtcdEntry {
            client: Arc::clone(client),
            claim,
            attaches,
            state: None,
            entering: None,
            removed: None,
            withdrawal: Withdrawal::default(),
            native: None,
        }
    }

    fn state(&mut self) -> Arc<ClaimState> {
        Arc::clone(self.state.get_or_insert_with(|| self.client.add(&self.claim)))
    }

    fn now(&self) -> Moment {
        self.claim.runtime.clock().now()
    }

    async fn enter(&mut self) -> Result<Attempt> {
        let state = self.state();
        if state.phase() == Phase::New {
            let (client, own) = (&self.client, &state);
            let entering =
                self.entering.get_or_insert_with(|| Box::pin(enter(Arc::clone(client), Arc::clone(own))));
            let outcome = entering.await;
            self.entering = None;
            match outcome? {
                Outcome::First(revision) => state.set_phase(Phase::Granted(revision)),
                Outcome::Queued(revision) => self.client.wait(&state, revision),
                Outcome::Busy => {
                    // A repeated request may still arrive.
                    if state.create_unanswered.load(Relaxed) {
                        withdraw(&self.client, &state).await?;
                    }
                    return Ok(Attempt::Blocked { again: None });
                }
                Outcome::Gone => state.set_phase(Phase::Gone),
            }
            if state.is_evicted() {
                eviction::evicted(&self.client, Arc::clone(&state));
            }
        }
        Ok(match state.phase() {
            Phase::Granted(revision) if hold(&self.client, &state, revision).await? => granted(revision),
            Phase::Holding(revision) => granted(revision),
            Phase::Queued(_) => self.queued(&state),
            Phase::Granted(_) | Phase::New | Phase::Gone => Attempt::Gone,
        })
    }

    fn queued(&self, state: &ClaimState) -> Attempt {
        let Some(lease) = state.lease().filter(|lease| !lease.is_over(self.now())) else {
            state.lose(state.claim.runtime.session_loss());
            return Attempt::Gone;
        };
        self.claim.validity.waiting(lease.sent(), self.claim.ttl().min(lease.ttl));
        Attempt::Blocked { again: Some(lease.until()) }
    }

    async fn attach(&mut self) -> Result<Attempt> {
        let revision = attach(Arc::clone(&self.client), self.state()).await?;
        Ok(revision.map_or(Attempt::Gone, granted))
    }

    async fn remove(&mut self) -> Result<Removed> {
        if let Some(state) = &self.state {
            state.withdrawn.store(true, Relaxed);
        }
        if let Some(entering) = &mut self.entering {
            // Its outcome does not matter. The state knows whether it may still arrive.
            let _ = entering.await;
            self.entering = None;
        }
        self.withdrawal.start(self.claim.is_valid());
        // This future may be dropped here; the next call finds out whether the key was deleted.
        let deletion = match self.state.as_ref().filter(|state| state.key().is_some()) {
            Some(state) => withdraw(&self.client, state).await?,
            None if self.attaches => {
                let queue = keys::queue(&self.client.config.prefix, &self.claim.want().name);
                release_detached(&self.client, &queue, self.claim.id).await?
            }
            None => return Ok(Removed::Nothing),
        };
        self.withdrawal.repeated(deletion.repeated);
        if !self.withdrawal.is_repeated()
            && deletion.found
            && let Some(state) = &self.state
        {
            state.key_used.store(false, Relaxed);
        }
        let found = if deletion.found { Found::Valid } else { Found::Missing };
        Ok(self.withdrawal.removed(found, self.attaches || self.claim.validity.is_confirmed()))
    }

    async fn cut_loose(&mut self) -> Result<()> {
        let Some((state, Phase::Holding(revision))) = self.state.as_ref().map(|s| (s, s.phase())) else {
            return Err(self.claim.gone());
        };
        let (Some(key), Some(id)) = (state.key(), state.key_id()) else { return Err(self.claim.gone()) };
        let ttl = self.claim.ttl();
        let lease = self.client.leases.dedicated(ttl).await?;
        let value = ClaimRecord { detached: true, ..ClaimRecord::read(&state.value())? }.to_bytes();
        let put = PutRequest::leased(key.to_vec(), value, lease.id);
        // An evicted claim, whose holder will be told soon, must not be detached: nobody could be told then.
        let note = keys::eviction(&self.client.config.prefix, id, revision);
        let txn = TxnRequest {
            compare: vec![Compare::created(&note, 0), Compare::created(key, revision)],
            success: vec![Op::Put(put).into()],
            failure: Vec::new(),
        };
        // This future may be dropped here. The guard still exists and releases the claim, detached or not.
        let reply = self.client.cluster.call(txn, None).await.map_err(Error::from)?;
        if !reply.succeeded {
            return Err(self.claim.gone());
        }
        lease_change::set_lease(&self.client, state, &lease, reply.revision());
        self.claim.confirm(lease.sent(), ttl);
        self.removed = Some(Removed::Nothing);
        Ok(())
    }
}

fn granted(revision: i64) -> Attempt {
    Attempt::Granted(Token::new(revision.unsigned_abs()))
}

impl Drop for EtcdEntry {
    fn drop(&mut self) {
        let Some(state) = &self.state else { return };
        if self.entering.is_some() && state.key().is_some() {
            // The request may have been sent, and may arrive behind the deletion.
            state.create_unanswered.store(true, Relaxed);
        }
        leave_queue(&self.client, state);
        self.client.remove(state);
        // The cleanup that core gave up continues here: other claims may renew a shared lease without end, and the key with it.
        if self.removed.is_none() && !self.attaches && state.key().is_some() && state.is_number_used() {
            self.claim.runtime.spawn(clean_up(Arc::clone(&self.client), Arc::clone(state)));
        }
    }
}

impl Entry for EtcdEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        if self.removed.is_some() {
            return Reply::ready(Ok(Attempt::Gone));
        }
        if self.attaches {
            return Reply::coming(self.attach());
        }
        match self.state.as_ref().map(|state| (state, state.phase())) {
            // The watch has told these; no request is needed.
            Some((state, Phase::Queued(_))) => Reply::ready(Ok(self.queued(state))),
            Some((_, Phase::Holding(revision))) => Reply::ready(Ok(granted(revision))),
            Some((_, Phase::Gone)) => Reply::ready(Ok(Attempt::Gone)),
            Some((_, Phase::Granted(_) | Phase::New)) | None => Reply::coming(self.enter()),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.state.as_ref().map_or(Poll::Pending, |state| state.poll(cx))
    }

    fn renewal(&self) -> Option<Renewal> {
        let state = self.state.as_ref()?;
        if matches!(state.phase(), Phase::New | Phase::Gone) {
            return None;
        }
        let session = EtcdSession { client: Arc::downgrade(&self.client), lease: state.lease()? };
        Some(Renewal { claim: Arc::clone(&self.claim), session: Arc::new(session) })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        match self.removed {
            Some(removed) => Reply::ready(Ok(removed)),
            None if self.state.is_none() && !self.attaches => Reply::ready(Ok(Removed::Nothing)),
            None => Reply::coming(async move {
                let answer = self.remove().await;
                let removed = self.withdrawal.answered(answer)?;
                self.removed = Some(removed);
                Ok(removed)
            }),
        }
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        Reply::coming(self.cut_loose())
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        let state = self.state.as_ref()?;
        let Phase::Holding(revision) = state.phase() else { return None };
        let held = Held::new(&self.client, &self.claim, state.key()?, revision);
        Some(self.native.insert(held))
    }
}
