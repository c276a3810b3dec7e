//! Renewal of grants: one write for each lease.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{Claim, Loss, Reply, Result, Session, third_of_lease};

use crate::client::{ClaimState, Known, ObjectClient, TRIES};
use crate::error::{contended, timed_out};
use crate::lock_object::LockObject;

/// The least time that a renewal gets.
const LEAST: Duration = Duration::from_millis(500);

impl ObjectClient {
    /// Renews a lease before half of what is left of it has passed. A request that hangs is given up then, so that the renewal can be
    /// repeated before the lease ends.
    async fn renew_in_time(&self, state: &ClaimState) -> Result<()> {
        let (clock, validity) = (self.store.clock(), &state.claim.validity);
        let now = clock.now();
        let limit = (validity.until().since(now) / 2).max(LEAST);
        let renewed = clock.within(now + limit, self.renew_one(state)).await;
        renewed.unwrap_or_else(|| Err(timed_out(self.store.shown(), limit)))
    }

    /// Renews a lease, or ends the claim if it holds the lock no more.
    async fn renew_one(&self, state: &ClaimState) -> Result<()> {
        // The client closes no semaphore, so this is always a permit.
        let _permit = self.renewals.acquire().await;
        let claim = &state.claim;
        // It may have ended while requests of other claims hung. A write would only keep others from the lock.
        if claim.validity.ended().is_some() {
            return Ok(());
        }
        let name = &claim.want().name;
        let (clock, key) = (self.store.clock(), self.keys.lock(name));
        for _ in 0..TRIES {
            let (ttl, sent) = (claim.ttl(), clock.now());
            let known = match state.known() {
                Some(known) => known,
                None => match self.read_own(state).await? {
                    Ok(known) => known,
                    Err(lock) => {
                        end(state, &lock);
                        return Ok(());
                    }
                },
            };
            if known.lock.is_evicted() {
                end(state, &known.lock);
                return Ok(());
            }
            let longest = ttl.max(known.until.since(sent));
            let next = known.lock.renewed(longest, clock.wall_micros(), |_| {});
            // Whatever becomes of the write: without its answer the version is unknown.
            state.learn(None);
            if let Some(version) = self.store.put(&key, Some(&known.version), next.to_bytes()).await? {
                state.learn(Some(Known { lock: next, version, until: clock.now() + longest }));
                claim.confirm(sent, ttl);
                return Ok(());
            }
        }
        Err(contended(self.store.shown()).unknown())
    }

    /// Reads the lock of a claim that holds it. Otherwise returns what is there instead.
    async fn read_own(&self, state: &ClaimState) -> Result<Result<Known, LockObject>> {
        let claim = &state.claim;
        let seen = self.look(&claim.want().name).await?;
        let Some(object) = seen.object else { return Ok(Err(LockObject::default())) };
        let (lock, id) = LockObject::read_any(&object.bytes);
        if id != Some(claim.id) {
            return Ok(Err(lock));
        }
        // Another program may have renewed it just now, for so long.
        let longest = lock.holder.as_ref().map_or(Duration::ZERO, |holder| holder.ttl);
        Ok(Ok(Known { lock, version: object.version, until: seen.now + longest }))
    }
}

/// Looks after each third of a lease that is not renewed whether its claim still has the lock, because no renewal tells its holder of an
/// eviction.
pub(crate) async fn watch_fixed(client: Weak<ObjectClient>, state: Weak<ClaimState>, mut ttl: Duration) {
    let Some(clock) = client.upgrade().map(|client| client.store.clock().clone()) else { return };
    loop {
        let state = third_of_lease(&clock, ttl, &state).await;
        let (Some(client), Some(state)) = (client.upgrade(), state) else { return };
        let claim = &state.claim;
        if clock.is_stopped() || claim.is_leaving() || !claim.is_valid() {
            return;
        }
        match client.read_own(&state).await {
            Ok(Ok(known)) if !known.lock.is_evicted() => {}
            Ok(Ok(Known { lock, .. }) | Err(lock)) => return end(&state, &lock),
            Err(error) => tracing::debug!(%error, "nobody knows whether a claim was evicted"),
        }
        ttl = claim.ttl();
    }
}

/// Ends a claim that has lost the lock, or has been evicted.
fn end(state: &ClaimState, lock: &LockObject) {
    let validity = &state.claim.validity;
    if state.claim.is_leaving() {
        return;
    }
    match lock.loss_of(state.token()) {
        Some(reason) => validity.end_with(Loss::Evicted, reason),
        None => validity.end(Loss::Deleted),
    }
}

/// The session of one claim.
pub(crate) struct ObjectSession {
    pub(crate) client: Arc<ObjectClient>,
    pub(crate) state: Arc<ClaimState>,
}

impl Session for ObjectSession {
    fn renew<'a>(&'a self, _: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        let (client, state) = (Arc::clone(&self.client), Arc::clone(&self.state));
        Reply::coming(self.client.store.run(async move { client.renew_in_time(&state).await }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::time::Duration;

    use fencepost_core::{Backend, BackendUrl, Client, Eviction, Registry, Runtime};
    use fencepost_testkit::wait::eventually;
    use object_store::ObjectStoreExt as _;
    use object_store::path::Path;

    use super::*;
    use crate::costs::Counted;

    const SOON: Duration = Duration::from_secs(30);
    /// How often a test begins anew on a machine that is too slow to show anything.
    const TRIES: u32 = 5;

    /// A registry takes plain functions only.
    fn store() -> &'static Arc<Counted> {
        static STORE: OnceLock<Arc<Counted>> = OnceLock::new();
        STORE.get_or_init(Arc::default)
    }

    fn open(_: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
        store().open(runtime)
    }

    async fn connect(ttl: Duration) -> Client {
        let registry = Registry::new().with("renewed", open);
        Client::builder().ttl(ttl).connect(&registry, "renewed:").await.expect("it opens")
    }

    async fn writes(key: &Path) -> u64 {
        let object = store().store.get(key).await.expect("it is there").bytes().await.expect("it is read");
        LockObject::read_any(&object).0.write
    }

    /// Both leases are due at the same time.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_renewal_that_hangs_holds_up_no_other_lease() {
        for number in 0..TRIES {
            if renew_beside_one_that_hangs(number).await {
                return;
            }
        }
        panic!("a lease of three seconds ended in each of {TRIES} tries");
    }

    /// Returns whether the other lease was renewed all the time, for which a busy machine may be too slow.
    async fn renew_beside_one_that_hangs(number: u32) -> bool {
        let locks = connect(Duration::from_secs(3)).await;
        let [one, other] = ["one", "other"].map(|name| format!("{name}{number}"));
        let hangs = locks.mutex(&one).unwrap().lock().await.unwrap();
        let guard = locks.mutex(&other).unwrap().lock().await.unwrap();
        *store().silent.lock() = Some(Path::from(format!("locks/{one}")));
        let why = tokio::time::timeout(SOON, hangs.lost()).await.expect("it is not renewed");
        assert_eq!(why, Loss::Expired);
        let other = Path::from(format!("locks/{other}"));
        let before = writes(&other).await;
        eventually(SOON, "it is renewed", async || {
            writes(&other).await > before + 2 || guard.ensure_held().is_err()
        })
        .await;
        let is_held = guard.ensure_held().is_ok();
        *store().silent.lock() = None;
        let released = guard.release().await;
        drop(hangs);
        locks.close().await;
        is_held && released.is_ok()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_renewal_that_hangs_is_repeated_before_its_lease_ends() {
        for number in 0..TRIES {
            if renew_after_one_that_hangs(number).await {
                return;
            }
        }
        panic!("a lease of three seconds ended in each of {TRIES} tries");
    }

    /// Returns whether the lease was renewed in time, for which a busy machine may be too slow.
    async fn renew_after_one_that_hangs(number: u32) -> bool {
        let locks = connect(Duration::from_secs(3)).await;
        let name = format!("again{number}");
        let guard = locks.mutex(&name).unwrap().lock().await.unwrap();
        let key = Path::from(format!("locks/{name}"));
        *store().silent_once.lock() = Some(key.clone());
        let before = writes(&key).await;
        eventually(SOON, "it is renewed", async || {
            writes(&key).await > before || guard.ensure_held().is_err()
        })
        .await;
        let is_held = guard.ensure_held().is_ok() && store().silent_once.lock().take().is_none();
        let released = guard.release().await;
        locks.close().await;
        is_held && released.is_ok()
    }

    /// The waiter has the lock long before the evicted holder asks.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_holder_that_is_evicted_at_once_is_told_so_behind_the_next_grant() {
        let (locks, others) = (connect(Duration::from_secs(12)).await, connect(SOON).await);
        let guard = locks.mutex("evicted").unwrap().lock().await.unwrap();
        let mutex = others.mutex("evicted").unwrap();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        let waits = async || others.inspect("evicted").await.unwrap().waiters().count() == 1;
        eventually(SOON, "it waits", waits).await;
        let now = Eviction::new(true).because("for a test");
        others.evict("evicted", guard.token(), &now).await.unwrap();
        let next = waiting.await.expect("no panic").expect("it is free");
        let why = tokio::time::timeout(SOON, guard.lost()).await.expect("its next renewal tells");
        let text = guard.ensure_held().unwrap_err().to_string();
        assert!(why == Loss::Evicted && text.contains("for a test"), "{why:?}: {text}");
        next.release().await.unwrap();
        drop(guard);
        for client in [locks, others] {
            client.close().await;
        }
    }

    /// Nothing renews the leases, and with `now` the lock is free beside the holder.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_holder_with_a_fixed_lease_is_told_of_its_loss() {
        let (locks, operator) = (connect(Duration::from_secs(12)).await, connect(SOON).await);
        let mut guards = Vec::new();
        for name in ["marked", "freed", "deleted"] {
            guards.push(locks.mutex(name).unwrap().lock().no_renewal().await.unwrap());
        }
        for (guard, now) in guards.iter().zip([false, true]) {
            let how = Eviction::new(now).because("for a test");
            operator.evict(guard.name().as_str(), guard.token(), &how).await.unwrap();
        }
        store().store.delete(&Path::from("locks/deleted")).await.expect("it is there");
        for (guard, loss) in guards.into_iter().zip([Loss::Evicted, Loss::Evicted, Loss::Deleted]) {
            let why = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
            let text = guard.ensure_held().unwrap_err().to_string();
            assert!(why == loss && (loss == Loss::Deleted || text.contains("for a test")), "{why:?}: {text}");
        }
        for client in [locks, operator] {
            client.close().await;
        }
    }
}
