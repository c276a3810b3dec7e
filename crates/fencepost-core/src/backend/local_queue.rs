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
/// A claim whose turn has come sends its request with the next poll of its future. So a future that is held and not polled holds up those
/// behind it, as it would in the queue of an engine that has granted it the lock.
pub struct LocalQueue {
    queues: Arc<Queues>,
    session: OnceLock<Arc<LocalSession>>,
}

impl LocalQueue {
    /// Makes a queue before an engine. Clients of this process with the same `engine`, a name of the caller's choice, share it, and the `most`
    /// of the first of them counts. Clients of a process that is forked off this one do not share it.
    ///
    /// The claims here learn only from [`Backend::reach`] that the engine is away, so an engine with such a queue writes that method.
    pub fn new(most: u32, engine: &str) -> LocalQueue {
        // By the process, too, because no claim of a parent ever leaves the copy of its queue that a forked child has.
        type Shared = HashMap<(u32, String), Weak<Queues>>;
        static SHARED: OnceLock<Mutex<Shared>> = OnceLock::new();
        let key = (std::process::id(), engine.to_owned());
        let mut shared = SHARED.get_or_init(Mutex::default).lock();
        shared.retain(|_, queues| queues.strong_count() > 0);
        let existing = shared.get(&key).and_then(Weak::upgrade);
        let queues = existing.unwrap_or_else(|| {
            let queues = Arc::new(Queues::new(most));
            shared.insert(key, Arc::downgrade(&queues));
            queues
        });
        LocalQueue { queues, session: OnceLock::new() }
    }

    /// Makes the claim of `entry` wait here first. A claim that takes up a detached grant does not wait. `backend` tells whether the engine
    /// can be reached; it is the same one for each entry.
    #[must_use]
    pub fn before(&self, entry: Entry, how: How, backend: Arc<dyn Backend>) -> Entry {
        if how == How::Attach {
            return entry;
        }
        let session =
            self.session.get_or_init(|| Arc::new(LocalSession { backend: Arc::downgrade(&backend) }));
        let turn =
            LocalTurn::new(Arc::clone(entry.claim()), &self.queues, Arc::<LocalSession>::clone(session));
        entry.with_turn(turn)
    }
}

/// The session of claims that wait here. It only checks that the engine answers, so that they are told when it fails, as those that wait
/// at the engine are.
struct LocalSession {
    backend: Weak<dyn Backend>,
}

impl Session for LocalSession {
    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(async move {
            let Some(first) = due.first() else { return Ok(()) };
            let sent = first.runtime.clock().now();
            let Some(backend) = self.backend.upgrade() else { return Ok(()) };
            let scheduled: Vec<_> = due.iter().map(|claim| claim.validity.due()).collect();
            backend.reach().await?;
            for (claim, before) in
                due.iter().zip(scheduled).filter(|(claim, _)| !claim.validity.is_confirmed())
            {
                // A claim that has reached the engine meanwhile has the time that the engine needs, which may be sooner.
                claim.validity.reschedule(before, sent + claim.ttl().min(REACH) / 3);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::backend::admission::Mode;
    use crate::backend::capabilities::Capabilities;
    use crate::backend::claim::Want;
    use crate::backend::operator::Operator;
    use crate::name::Name;
    use crate::operator::holder::HolderInfo;
    use crate::runtime::Runtime;
    use crate::testing::NoTasks;
    use crate::time::Clock;

    /// An engine that answers when the test says so.
    struct Slow(Mutex<Option<oneshot::Receiver<()>>>);

    impl Backend for Slow {
        fn capabilities(&self) -> Capabilities {
            Capabilities::full("slow")
        }

        fn entry(self: Arc<Self>, _: Arc<Claim>, _: How) -> Entry {
            unreachable!("nobody asks for a grant")
        }

        fn operator(&self) -> &dyn Operator {
            unreachable!("no operator asks")
        }

        fn reach(&self) -> Reply<'_, Result<()>> {
            let answer = self.0.lock().take().expect("it is asked once");
            Reply::coming(async move {
                answer.await.expect("the test answers");
                Ok(())
            })
        }
    }

    #[test]
    fn a_claim_that_reaches_the_engine_during_a_look_keeps_the_time_that_the_engine_needs() {
        let (clock, second) = (Clock::manual(), Duration::from_secs(1));
        let runtime = Runtime::for_client(1, clock.clone(), Arc::new(NoTasks));
        let claims = [(); 2].map(|()| {
            let want = Want { name: Name::new("a").unwrap(), mode: Mode::Exclusive };
            let holder = HolderInfo::labelled("test");
            Arc::new(Claim::new(runtime.fresh_id(), want, 30 * second, holder, runtime.clone()))
        });
        claims.iter().for_each(|claim| claim.validity.waiting(clock.now(), 30 * second));
        let (answer, answered) = oneshot::channel();
        let engine: Arc<dyn Backend> = Arc::new(Slow(Mutex::new(Some(answered))));
        let session = LocalSession { backend: Arc::downgrade(&engine) };
        clock.advance_to(clock.now() + 10 * second);
        let sent = clock.now();
        let mut look = session.renew(&claims);
        let mut poll = || Pin::new(&mut look).poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        // The engine forgets the first one within 3 s unless it is renewed.
        claims[0].validity.waiting(sent, 3 * second);
        answer.send(()).unwrap();
        assert!(matches!(poll(), Poll::Ready(Ok(()))));
        assert_eq!(claims[0].validity.due(), sent + second);
        assert_eq!(claims[1].validity.due(), sent + 10 * second, "it still waits here");
    }

    #[test]
    fn a_forked_child_has_a_queue_of_its_own() {
        let queue = LocalQueue::new(1, "forked");
        let shared = LocalQueue::new(1, "forked");
        assert!(Arc::ptr_eq(&queue.queues, &shared.queues));
        drop(crate::testing::fork_when_dropped(move || {
            assert!(!Arc::ptr_eq(&queue.queues, &LocalQueue::new(1, "forked").queues));
        }));
    }
}
