//! The state that the parts of one client share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, ClaimId, Moment, Name, Result, margin};
use tokio::sync::Semaphore;

use crate::conn::{Object, Store, Version};
use crate::keys::Keys;
use crate::lock_object::{Holding, LockObject};

/// How often an object is read and written again because somebody else was quicker.
pub(crate) const TRIES: u32 = 8;
/// How many renewals are sent at the same time.
const RENEWALS: usize = 32;
/// So many leases are watched before those are forgotten that nobody has asked for.
const WATCHED: usize = 256;
/// A lease that nobody has asked for in this time is forgotten, if it has also ended.
const FORGOTTEN: Duration = Duration::from_secs(600);

pub(crate) struct ObjectClient {
    pub(crate) store: Store,
    pub(crate) keys: Keys,
    /// The longest pause of a waiter between two looks.
    pub(crate) poll: Duration,
    watched: Mutex<HashMap<Name, Watched>>,
    /// A permit for each renewal that is sent at the same time.
    pub(crate) renewals: Semaphore,
}

/// A lease of somebody else, as this client has seen it. A store has no clock to share, so a lease has ended once nobody renewed it for its
/// whole length by the clock of the one who looks.
struct Watched {
    /// The claim that holds the lock, its token, and its last renewal. The claim alone tells two grants apart if the object was deleted
    /// between them, because both numbers begin again then.
    beat: (Option<ClaimId>, u64, u64),
    since: Moment,
    length: Duration,
    /// When somebody has looked last.
    looked: Moment,
}

/// A claim, and what is known of its grant.
pub(crate) struct ClaimState {
    pub(crate) claim: Arc<Claim>,
    known: Mutex<Option<Known>>,
    /// The token of its grant; zero before that.
    token: AtomicU64,
}

/// The lock as the last write of its holder has left it.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) lock: LockObject,
    pub(crate) version: Version,
    /// Until when others keep off. A renewal must not shorten that, because another program that knows the lease may rely on it.
    pub(crate) until: Moment,
}

impl ClaimState {
    pub(crate) fn new(claim: Arc<Claim>) -> ClaimState {
        ClaimState { claim, known: Mutex::default(), token: AtomicU64::new(0) }
    }

    pub(crate) fn known(&self) -> Option<Known> {
        self.known.lock().clone()
    }

    pub(crate) fn token(&self) -> u64 {
        self.token.load(Relaxed)
    }

    pub(crate) fn learn(&self, known: Option<Known>) {
        if let Some(known) = &known {
            self.token.store(known.lock.token, Relaxed);
        }
        *self.known.lock() = known;
    }
}

/// An object of a lock that was read.
pub(crate) struct Seen {
    /// Before it was read.
    pub(crate) asked: Moment,
    /// After it was read.
    pub(crate) now: Moment,
    /// `None`: there is none, because nobody ever held the lock.
    pub(crate) object: Option<Object>,
}

impl Seen {
    pub(crate) fn version(&self) -> Option<&Version> {
        self.object.as_ref().map(|object| &object.version)
    }

    pub(crate) fn lock(&self) -> Result<LockObject> {
        Ok(self
            .object
            .as_ref()
            .map(|object| LockObject::read(&object.bytes))
            .transpose()?
            .unwrap_or_default())
    }
}

impl ObjectClient {
    pub(crate) fn new(store: Store, keys: Keys, poll: Duration) -> Arc<ObjectClient> {
        Arc::new(ObjectClient {
            store,
            keys,
            poll,
            watched: Mutex::default(),
            renewals: Semaphore::new(RENEWALS),
        })
    }

    /// Reads the object of a lock.
    pub(crate) async fn look(&self, name: &Name) -> Result<Seen> {
        let asked = self.store.clock().now();
        let object = self.store.get(&self.keys.lock(name)).await?;
        Ok(Seen { asked, now: self.store.clock().now(), object })
    }

    /// Returns when the lease of this holder has ended, unless it is renewed. It has ended if that is before the lock was asked for.
    ///
    /// The holder counts its lease from before its last write was sent, and stops a margin before its end. This client counts from
    /// after it first read that write, and adds the margin again, because the two clocks may run at different rates.
    pub(crate) fn watch(&self, name: &Name, token: u64, holder: &Holding, seen: &Seen) -> Moment {
        let mut all = self.watched.lock();
        let beat = (holder.record.id, token, holder.beat);
        let length = holder.ttl + margin(holder.ttl);
        if let Some(watched) = all.get_mut(name).filter(|watched| watched.beat == beat) {
            watched.looked = seen.now;
            return watched.since + watched.length;
        }
        if all.len() >= WATCHED {
            let kept = |watched: &Watched| {
                seen.now < watched.looked + FORGOTTEN || seen.now < watched.since + watched.length
            };
            all.retain(|_, watched| kept(watched));
        }
        all.insert(name.clone(), Watched { beat, since: seen.now, length, looked: seen.now });
        seen.now + length
    }

    /// Forgets whose lease was seen: nobody holds the lock, or this client does.
    pub(crate) fn forget(&self, name: &Name) {
        self.watched.lock().remove(name);
    }

    /// Returns whether the lease of this holder has ended, as far as this client has seen.
    pub(crate) fn has_ended(&self, name: &Name, token: u64, holder: &Holding, seen: &Seen) -> bool {
        self.watch(name, token, holder, seen) <= seen.asked
    }
}
