//! A queue in the process before the engine's.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use crate::backend::Backend;
use crate::backend::claim::Claim;
use crate::backend::reply::Reply;
use crate::backend::session::Session;
use crate::entry::Entry;
use crate::entry::local_turn::{LocalTurn, Queues, REACH};
use crate::entry::place::How;
use crate::error::Result;
use crate::sync::Mutex;

/// A queue in the process, for engines whose queue gets slow or large: at most `most` claims of this process wait at the engine for one
/// name. The others wait here, in the order of their calls. Each costs the engine nothing, and a step costs the same whatever their number.
///
/// An exclusive claim is sent when those before it have been answered, so that the engine has them in the order of their calls. So is a
/// claim that has waited here. Claims that can hold together and find nobody waiting here are sent together. A claim that does not
/// [wait](crate::Claim::waits) is refused while others wait here. A claim that is [unfair](crate::Claim::unfair) passes those that wait at
/// the engine. It passes none of those that wait here, because it has not reached the engine. Once it has waited here it is asked for as a
/// [fair one](crate::Claim::is_unfair), because others have queued at the engine meanwhile.
///
/// A claim whose turn has come sends its request with the next poll of its future. So a future that is kept and not polled holds up those
/// behind it, as it would in the queue of an engine that has granted it the lock.
pub struct LocalQueue {
    queues: Arc<Queues>,
    waits: OnceLock<Arc<Waits>>,
}

impl LocalQueue {
    /// Makes a queue before an engine. Clients of this process with the same `engine`, a name of the caller's choice, share it, and the `most`
    /// of the first of them counts.
    ///
    /// The claims here learn only from [`Backend::reach`] that the engine is away, so an engine with such a queue writes that method.
    pub fn new(most: u32, engine: &str) -> LocalQueue {
        static SHARED: OnceLock<Mutex<HashMap<String, Weak<Queues>>>> = OnceLock::new();
        let mut shared = SHARED.get_or_init(Mutex::default).lock();
        shared.retain(|_, queues| queues.strong_count() > 0);
        let existing = shared.get(engine).and_then(Weak::upgrade);
        let queues = existing.unwrap_or_else(|| {
            let queues = Arc::new(Queues::new(most));
            shared.insert(engine.to_owned(), Arc::downgrade(&queues));
            queues
        });
        LocalQueue { queues, waits: OnceLock::new() }
    }

    /// Makes the claim of `entry` wait here first. A claim that takes up a detached grant does not wait. `backend` tells whether the engine
    /// can be reached; it is the same one for each entry.
    #[must_use]
    pub fn before(&self, entry: Entry, how: How, backend: Arc<dyn Backend>) -> Entry {
        if how == How::Attach {
            return entry;
        }
        let waits = self.waits.get_or_init(|| Arc::new(Waits { backend: Arc::downgrade(&backend) }));
        let turn = LocalTurn::new(Arc::clone(entry.claim()), &self.queues, Arc::<Waits>::clone(waits));
        entry.with_turn(turn)
    }
}

/// The session of claims that wait here. It only checks that the engine answers, so that they are told when it fails, as those that wait
/// at the engine are.
struct Waits {
    backend: Weak<dyn Backend>,
}

impl Session for Waits {
    fn id(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(async move {
            let Some(first) = due.first() else { return Ok(()) };
            let sent = first.runtime.clock().now();
            let Some(backend) = self.backend.upgrade() else { return Ok(()) };
            backend.reach().await?;
            // One that holds by now is renewed by its engine.
            for claim in due.iter().filter(|claim| !claim.validity.is_confirmed()) {
                claim.validity.waiting(sent, claim.ttl().min(REACH));
            }
            Ok(())
        })
    }
}
