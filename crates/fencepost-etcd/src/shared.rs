//! What everything of one client shares.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::{Claim, ClaimRecord, Loss, Moment, Runtime};
use tokio::sync::mpsc;

use crate::calm::Calm;
use crate::config::Config;
use crate::error::Failure;
use crate::folder::Folder;
use crate::held::Grants;
use crate::keys;
use crate::lease::{self, Lease, Leases};
use crate::member::{Member, Stand};
use crate::net::{DELETE, Net, RANGE, TXN};
use crate::proto::{
    Compare, DeleteRequest, DeleteResponse, KeyValue, Op, PutRequest, RangeRequest, RangeResponse, RequestOp,
    TxnRequest, TxnResponse,
};
use crate::watch::{self, Command};

/// How often a key that others write meanwhile is written again.
pub(crate) const TRIES: u32 = 5;
/// How often a cleanup that fails is tried again.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// What tells the keys of one lease apart. A number is used again once its key is certainly gone for good: etcd remembers the
/// name of every key that was there since the last compaction, and steps over all of them when it reads a folder.
#[derive(Default)]
struct Numbers {
    free: BinaryHeap<Reverse<u64>>,
    last: u64,
}

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) runtime: Runtime,
    pub(crate) net: Arc<Net>,
    pub(crate) leases: Leases,
    pub(crate) calm: Calm,
    pub(crate) grants: Grants,
    members: Mutex<HashMap<u64, Arc<Member>>>,
    numbers: Mutex<Numbers>,
    /// Members that have taken up the key of another one, by what that is called.
    adopted: Mutex<HashMap<(i64, u64), u64>>,
    folders: Mutex<HashMap<Vec<u8>, Arc<Folder>>>,
    watch: mpsc::UnboundedSender<Command>,
    /// It has been told to watch for evictions.
    heeding: AtomicBool,
}

impl Shared {
    pub(crate) async fn open(config: Config, runtime: Runtime) -> Result<Arc<Shared>, Failure> {
        let net = Arc::new(Net::open(&config, &runtime).await?);
        let (sender, commands) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            config,
            net,
            leases: Leases::default(),
            calm: Calm::default(),
            grants: Grants::default(),
            members: Mutex::default(),
            numbers: Mutex::default(),
            adopted: Mutex::default(),
            folders: Mutex::default(),
            watch: sender,
            heeding: AtomicBool::new(false),
            runtime: runtime.clone(),
        });
        // Whether anybody is there, and lets us in.
        shared.reach().await?;
        runtime.spawn(watch::pump(Arc::downgrade(&shared), runtime.clock().clone(), commands));
        Ok(shared)
    }

    /// Asks for an answer of any kind.
    pub(crate) async fn reach(&self) -> Result<(), Failure> {
        let key = keys::marks(&self.config.prefix);
        let question = RangeRequest { keys_only: true, ..RangeRequest::by_creation(key, Vec::new(), 1) };
        self.net.call::<_, RangeResponse>(RANGE, question, None).await.map(drop)
    }

    pub(crate) fn now(&self) -> Moment {
        self.runtime.clock().now()
    }

    /// A new member for a claim.
    pub(crate) fn join(&self, claim: &Arc<Claim>) -> Arc<Member> {
        self.heed();
        let number = self.number();
        claim.note.store(number, Ordering::Relaxed);
        let folder = keys::folder(&self.config.prefix, &claim.want().name);
        let member = Arc::new(Member::new(Arc::clone(claim), number, folder));
        self.members().insert(number, Arc::clone(&member));
        member
    }

    /// It has left, or its entry is gone.
    pub(crate) fn part(&self, member: &Member) {
        // One that left without a key never joined, or left cleanly.
        if self.members().remove(&member.number).is_some() && !member.is_spent() {
            self.numbers().free.push(Reverse(member.number));
        }
        self.adopted().retain(|_, number| *number != member.number);
    }

    fn number(&self) -> u64 {
        let mut numbers = self.numbers();
        match numbers.free.pop() {
            Some(Reverse(number)) => number,
            None => {
                numbers.last += 1;
                numbers.last
            }
        }
    }

    /// It has taken up this key.
    pub(crate) fn adopt(&self, key: &[u8], member: &Member) {
        if let Some(name) = keys::number(key) {
            self.adopted().insert(name, member.number);
        }
    }

    pub(crate) fn member(&self, number: u64) -> Option<Arc<Member>> {
        self.members().get(&number).cloned()
    }

    /// The member whose key ends so.
    pub(crate) fn owner(&self, name: (i64, u64)) -> Option<Arc<Member>> {
        let adopted = self.adopted().get(&name).copied();
        match adopted {
            Some(number) => self.member(number),
            None => {
                self.member(name.1).filter(|member| member.home().is_some_and(|lease| lease.id == name.0))
            }
        }
    }

    /// Its keys are gone, or will be soon and are not trusted any more. `revoked`: by somebody, before its time.
    pub(crate) fn lose(&self, lease: &Lease, revoked: bool) {
        lease.end();
        let members: Vec<_> = self.members().values().cloned().collect();
        for member in members {
            if member.lease().is_none_or(|own| own.id != lease.id) {
                continue;
            }
            if revoked {
                let detail = format!("its lease {:x} was revoked", lease.id);
                member.lose_with(Loss::SessionEnded, detail);
            } else {
                member.lose(Loss::SessionEnded);
            }
        }
    }

    /// The member holds from now on.
    pub(crate) fn granted(&self, member: &Arc<Member>) {
        if let Some(look) = self.grants.add(self.now(), member) {
            let _ = self.watch.send(Command::Grants(look));
        }
    }

    /// Members that have held for long, and whose keys are to be watched.
    pub(crate) fn long_held(&self) -> Vec<Arc<Member>> {
        let members = self.members();
        members.values().filter(|member| member.long.load(Ordering::Relaxed)).cloned().collect()
    }

    /// The folder, if it is being watched.
    pub(crate) fn watched(&self, start: &[u8]) -> Option<Arc<Folder>> {
        self.folders().get(start).cloned()
    }

    /// Has the member wait for its turn.
    pub(crate) fn wait(&self, member: &Arc<Member>, revision: i64) {
        member.put(Stand::Waiting(revision));
        let now = self.now();
        loop {
            let folder = {
                let mut folders = self.folders();
                match folders.get(&member.folder) {
                    Some(folder) => Arc::clone(folder),
                    None => {
                        let folder = Arc::new(Folder::new(member.folder.clone(), now));
                        folders.insert(member.folder.clone(), Arc::clone(&folder));
                        let _ = self.watch.send(Command::Folder(Arc::clone(&folder)));
                        folder
                    }
                }
            };
            if folder.wait(revision, member, now) {
                return;
            }
            self.forget(&folder);
        }
    }

    /// The folder is watched no more.
    pub(crate) fn forget(&self, folder: &Arc<Folder>) {
        let mut folders = self.folders();
        if folders.get(&folder.start).is_some_and(|known| Arc::ptr_eq(known, folder)) {
            folders.remove(&folder.start);
        }
    }

    pub(crate) fn all_folders(&self) -> Vec<Arc<Folder>> {
        self.folders().values().cloned().collect()
    }

    /// Evictions are heard of from now on.
    pub(crate) fn heed(&self) {
        if !self.heeding.swap(true, Ordering::Relaxed) {
            let _ = self.watch.send(Command::Marks);
        }
    }

    pub(crate) async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse, Failure> {
        self.net.call(TXN, txn, None).await
    }

    /// A whole folder, in the order of the line, and its revision.
    pub(crate) async fn line(&self, folder: &[u8]) -> Result<(i64, Vec<KeyValue>), Failure> {
        let question = RangeRequest::by_creation(folder.to_vec(), keys::end(folder), 0);
        let answer: RangeResponse = self.net.call(RANGE, question, None).await?;
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        let mut kvs = answer.kvs;
        kvs.retain(|kv| keys::contends(folder, &kv.key));
        Ok((revision, kvs))
    }

    /// Has the member's key hang on this lease, if it is still there. Only where nobody has written it since: a request of before that
    /// is late does not take it back.
    pub(crate) async fn hang(
        &self,
        member: &Member,
        revision: i64,
        lease: &Arc<Lease>,
    ) -> Result<bool, Failure> {
        let Some(key) = member.key() else { return Ok(false) };
        let mut value = member.value();
        let mut written = member.hung().max(revision);
        // Until an answer says where it hangs; dropped here, it is not known.
        member.adrift.store(true, Ordering::Relaxed);
        for _ in 0..TRIES {
            let put =
                PutRequest { key: key.to_vec(), value: value.clone(), lease: lease.id, ignore_lease: false };
            let txn = TxnRequest {
                compare: vec![Compare::created(key, revision), Compare::written(key, written)],
                success: vec![Op::Put(put).into()],
                failure: vec![RequestOp::key(key)],
            };
            let answer = self.txn(txn).await?;
            let found = answer.range(0).and_then(|own| own.kvs.first());
            let at = match found.filter(|kv| kv.create_revision == revision) {
                _ if answer.succeeded => answer.revision(),
                None => return Ok(false),
                // An earlier request did it, and its answer was lost.
                Some(kv) if kv.lease == lease.id => kv.mod_revision,
                Some(kv) => {
                    written = kv.mod_revision;
                    let evicted = ClaimRecord::read(&kv.value).evicted;
                    value = ClaimRecord { evicted, ..ClaimRecord::read(&member.value()) }.to_bytes();
                    continue;
                }
            };
            self.hung(member, lease, at);
            return Ok(true);
        }
        Err(Failure::contested())
    }

    /// The member's key was hung on this lease at the revision `at`: one of its own that it hung on before has nothing left.
    pub(crate) fn hung(&self, member: &Member, lease: &Arc<Lease>, at: i64) {
        if let Some(before) = member.hang(Arc::clone(lease), at).filter(|before| before.private) {
            self.revoke(before.id);
        }
    }

    /// Makes a lease for one claim alone.
    pub(crate) async fn private(&self, ttl: Duration) -> Result<Arc<Lease>, Failure> {
        lease::grant(&self.net, &self.runtime, ttl, true).await.map(Arc::new)
    }

    /// Ends a lease that nothing hangs on any more, in the background. If that fails it ends by itself.
    pub(crate) fn revoke(&self, id: i64) {
        let net = Arc::clone(&self.net);
        self.runtime.cleaner().finish(async move {
            if let Err(failure) = lease::revoke(&net, id).await {
                tracing::debug!(error = failure.cause(), "an empty lease was not revoked; it ends by itself");
            }
        });
    }

    /// An operator has evicted this member: its holder is told, and its key is left to run out, whatever the holder does.
    pub(crate) fn evicted(self: &Arc<Self>, member: Arc<Member>) {
        if member.claim.validity.ended().is_some() {
            return;
        }
        member.claim.validity.end_with(Loss::Evicted, member.evicted_by());
        let stand = member.stand();
        let (Some(revision), Some(number)) = (stand.revision(), member.key().and_then(keys::number)) else {
            member.put(Stand::Gone);
            return;
        };
        let holds = matches!(stand, Stand::Holding(_));
        if !holds {
            // Its entry takes the key back.
            member.put(Stand::Gone);
        }
        let (shared, ttl) = (Arc::clone(self), member.claim.ttl());
        self.runtime.spawn(async move {
            let clock = shared.runtime.clock();
            let until = clock.now() + ttl;
            // Until it is released, or its lease would have ended.
            while holds && !member.leaving.load(Ordering::Relaxed) && clock.now() < until {
                let left = async {
                    let lease = shared.private(until.since(clock.now())).await?;
                    shared.hang(&member, revision, &lease).await
                };
                match left.await {
                    Ok(_) => break,
                    Err(_) => clock.sleep_until(clock.now() + PAUSE).await,
                }
            }
            shared.unmark(number, revision).await;
        });
    }

    /// Nobody needs this mark any more. If that fails it ends with the lease.
    pub(crate) async fn unmark(&self, number: (i64, u64), revision: i64) {
        let key = keys::mark(&self.config.prefix, number, revision);
        let question = DeleteRequest { key, range_end: Vec::new() };
        let _: Result<DeleteResponse, Failure> = self.net.call(DELETE, question, None).await;
    }

    /// Ends everything of this client at the server.
    pub(crate) async fn close(&self) {
        for lease in self.leases.take() {
            let now = self.now();
            if lease.is_over(now) {
                continue;
            }
            // Before anybody else can be let in.
            self.lose(&lease, false);
            let bound = now + PAUSE;
            let _ = self.runtime.clock().within(bound, lease::revoke(&self.net, lease.id)).await;
        }
        self.net.close();
        let _ = self.watch.send(Command::Close);
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn members(&self) -> MutexGuard<'_, HashMap<u64, Arc<Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adopted(&self) -> MutexGuard<'_, HashMap<(i64, u64), u64>> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folders(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<Folder>>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
