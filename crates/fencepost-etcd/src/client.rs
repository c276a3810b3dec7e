//! The state that the parts of one client share.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, Loss, Moment, Runtime};
use tokio::sync::mpsc;

use crate::claim::state::{ClaimState, Phase};
use crate::config::Config;
use crate::error::Failed;
use crate::keys::{self, KeyId};
use crate::lease::{Lease, Leases};
use crate::rpc::cluster::Cluster;
use crate::rpc::proto::{KeyValue, RangeRequest};
use crate::watch::Command;
use crate::watch::queue::Queue;
use crate::watch::recent::RecentGrants;

/// How often a write is repeated when other programs write the same key.
pub(crate) const TRIES: u32 = 5;
/// The pause before a failed cleanup is repeated.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// The numbers of claims. A number is used again once its key is certainly gone for good: etcd keeps the name of each deleted key until the
/// next compaction, and reads over all of them when it reads a queue.
#[derive(Default)]
struct Numbers {
    free: BinaryHeap<Reverse<u64>>,
    last: u64,
}

impl Numbers {
    fn take(&mut self) -> u64 {
        self.free.pop().map_or_else(
            || {
                self.last += 1;
                self.last
            },
            |Reverse(number)| number,
        )
    }
}

pub(crate) struct EtcdClient {
    pub(crate) config: Config,
    pub(crate) runtime: Runtime,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) leases: Leases,
    pub(crate) recent: RecentGrants,
    claims: Mutex<HashMap<u64, Arc<ClaimState>>>,
    numbers: Mutex<Numbers>,
    /// Claims that have taken over another client's key, by its id.
    taken_over: Mutex<HashMap<KeyId, u64>>,
    queues: Mutex<HashMap<Vec<u8>, Arc<Queue>>>,
    watch: mpsc::UnboundedSender<Command>,
    watching: AtomicBool,
}

impl EtcdClient {
    /// Connects and checks that the cluster accepts this client.
    pub(crate) async fn open(
        config: Config,
        runtime: Runtime,
        watch: mpsc::UnboundedSender<Command>,
    ) -> Result<Arc<EtcdClient>, Failed> {
        let cluster = Arc::new(Cluster::open(&config, &runtime).await?);
        let client = Arc::new(EtcdClient {
            leases: Leases::new(Arc::clone(&cluster), runtime.clone()),
            config,
            runtime,
            cluster,
            recent: RecentGrants::default(),
            claims: Mutex::default(),
            numbers: Mutex::default(),
            taken_over: Mutex::default(),
            queues: Mutex::default(),
            watch,
            watching: AtomicBool::new(false),
        });
        client.cluster.choose().await?;
        Ok(client)
    }

    /// Sends a request of which only the reply matters.
    pub(crate) async fn reach(&self) -> Result<(), Failed> {
        let key = keys::evictions(&self.config.prefix);
        self.cluster.call(RangeRequest::probe(key), None).await.map(drop)
    }

    pub(crate) fn now(&self) -> Moment {
        self.runtime.clock().now()
    }

    /// Adds a claim.
    pub(crate) fn add(&self, claim: &Arc<Claim>) -> Arc<ClaimState> {
        // From the first claim on the watch tells evictions.
        if !self.watching.swap(true, Relaxed) {
            let _ = self.watch.send(Command::Start);
        }
        let number = self.numbers.lock().take();
        claim.note.store(number, Relaxed);
        let queue = keys::queue(&self.config.prefix, &claim.want().name);
        let state = Arc::new(ClaimState::new(Arc::clone(claim), number, queue));
        self.claims.lock().insert(number, Arc::clone(&state));
        state
    }

    /// Removes a claim whose entry is dropped.
    pub(crate) fn remove(&self, state: &ClaimState) {
        if self.claims.lock().remove(&state.number).is_some() && !state.is_number_used() {
            self.numbers.lock().free.push(Reverse(state.number));
        }
        self.taken_over.lock().retain(|_, number| *number != state.number);
    }

    /// Notes that the claim has taken over this key.
    pub(crate) fn took_over(&self, key: &[u8], state: &ClaimState) {
        if let Some(id) = keys::id(key) {
            self.taken_over.lock().insert(id, state.number);
        }
    }

    pub(crate) fn state(&self, number: u64) -> Option<Arc<ClaimState>> {
        self.claims.lock().get(&number).cloned()
    }

    /// Returns the claim whose key has this id.
    pub(crate) fn owner(&self, id: KeyId) -> Option<Arc<ClaimState>> {
        let taken_over = self.taken_over.lock().get(&id).copied();
        match taken_over {
            Some(number) => self.state(number),
            None => {
                self.state(id.1).filter(|state| state.first_lease().is_some_and(|lease| lease.id == id.0))
            }
        }
    }

    /// Ends a lease that is gone or not reliable any more, and its claims. `revoked`: somebody ended it before its time.
    /// The detail names the lease with 16 digits, as `etcdctl lease list` does.
    pub(crate) fn lose(&self, lease: &Lease, revoked: bool) {
        self.lose_those(lease, revoked, |_| true);
    }

    /// As [`lose`](EtcdClient::lose), but for holders whose keys may have another lease: their next confirmation finds out.
    pub(crate) fn lose_certain(&self, lease: &Lease, revoked: bool) {
        let holds = |state: &ClaimState| matches!(state.phase(), Phase::Holding(_) | Phase::Granted(_));
        self.lose_those(lease, revoked, |state| !holds(state) || state.certainly_has(lease));
    }

    fn lose_those(&self, lease: &Lease, revoked: bool, which: impl Fn(&ClaimState) -> bool) {
        lease.end();
        for state in self.claims_of(lease).into_iter().filter(|state| which(state)) {
            if revoked {
                state.lose_with(Loss::SessionEnded, format!("its lease {:016x} was revoked", lease.id));
            } else {
                state.lose(self.runtime.session_loss());
            }
        }
    }

    /// Returns the claims whose keys have this lease.
    pub(crate) fn claims_of(&self, lease: &Lease) -> Vec<Arc<ClaimState>> {
        self.claims_that(|state| state.lease().is_some_and(|own| own.id == lease.id))
    }

    /// Returns the claims for which this is true.
    pub(crate) fn claims_that(&self, is: impl Fn(&ClaimState) -> bool) -> Vec<Arc<ClaimState>> {
        let mut claims: Vec<_> = self.claims.lock().values().cloned().collect();
        claims.retain(|state| is(state));
        claims
    }

    /// Notes a grant, whose key is watched if it is held for long.
    pub(crate) fn granted(&self, state: &Arc<ClaimState>) {
        if let Some(due) = self.recent.add(self.now(), state) {
            let _ = self.watch.send(Command::CheckGrants(due));
        }
    }

    /// Returns the claims whose keys are watched.
    pub(crate) fn key_watched(&self) -> Vec<Arc<ClaimState>> {
        let claims = self.claims.lock();
        claims.values().filter(|state| state.key_watched.load(Relaxed)).cloned().collect()
    }

    /// Returns the queue with this prefix, if it is watched.
    pub(crate) fn watched(&self, prefix: &[u8]) -> Option<Arc<Queue>> {
        self.queues.lock().get(prefix).cloned()
    }

    /// Lets the claim wait in its queue, which is watched from now on.
    pub(crate) fn wait(&self, state: &Arc<ClaimState>, revision: i64) {
        state.set_phase(Phase::Queued(revision));
        let now = self.now();
        loop {
            let queue = {
                let mut queues = self.queues.lock();
                let queue = queues.entry(state.queue.clone()).or_insert_with(|| {
                    let queue = Arc::new(Queue::new(state.queue.clone(), now));
                    let _ = self.watch.send(Command::Watch(Arc::clone(&queue)));
                    queue
                });
                Arc::clone(queue)
            };
            if queue.add_waiter(revision, state, now) {
                return;
            }
            self.forget(&queue);
        }
    }

    /// Removes a queue that is not watched any more.
    pub(crate) fn forget(&self, queue: &Arc<Queue>) {
        let mut queues = self.queues.lock();
        if queues.get(&queue.prefix).is_some_and(|known| Arc::ptr_eq(known, queue)) {
            queues.remove(&queue.prefix);
        }
    }

    pub(crate) fn queues(&self) -> Vec<Arc<Queue>> {
        self.queues.lock().values().cloned().collect()
    }

    /// Reads a whole queue, ordered by create revision, and the store's revision.
    pub(crate) async fn queue(&self, prefix: &[u8]) -> Result<(i64, Vec<KeyValue>), Failed> {
        let request = RangeRequest::by_creation(prefix.to_vec(), keys::end(prefix), 0);
        let reply = self.cluster.call(request, None).await?;
        let revision = reply.header.as_ref().map_or(0, |header| header.revision);
        let mut kvs = reply.kvs;
        kvs.retain(|kv| keys::contends(prefix, &kv.key));
        Ok((revision, kvs))
    }

    /// Ends all claims and revokes all shared leases.
    pub(crate) async fn close(&self) {
        for lease in self.leases.take() {
            let now = self.now();
            if lease.is_over(now) {
                continue;
            }
            // Before the server can grant the lock to another claim.
            self.lose(&lease, false);
            let _ = self.runtime.clock().within(now + PAUSE, self.leases.revoke(lease.id)).await;
        }
        self.cluster.close();
        let _ = self.watch.send(Command::Close);
    }
}
