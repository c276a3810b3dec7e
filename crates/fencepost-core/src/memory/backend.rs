//! The operations of the engine.

use crate::sync::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use super::engine::Memory;
use super::place::MemoryPlace;
use super::queue::MemoryQueue;
use super::records::RecordsOfClient;
use crate::backend::capabilities::Capabilities;
use crate::backend::claim::Claim;
use crate::backend::records::RecordStore;
use crate::backend::{Backend, Operator, Reply};
use crate::client::url::BackendUrl;
use crate::entry::Entry;
use crate::entry::place::How;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::operator::holder::ClaimInfo;
use crate::operator::info::{Eviction, Info, Listing, Page};
use crate::operator::report::{Finding, Report};
use crate::runtime::Runtime;
use crate::token::Token;
use crate::validity::Loss;

impl Backend for Memory {
    fn capabilities(&self) -> Capabilities {
        let clock_tokens = self.rules.clock_offset.is_some();
        Capabilities { replicas: false, clock_tokens, ..Capabilities::full("memory") }
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let place = MemoryPlace::new(Arc::clone(&self), Arc::clone(&claim), how == How::Attach);
        Entry::new(claim, how, place)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }
}

impl Operator for Memory {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        let claims = self.with_queue(name, |queue| queue.claims());
        Reply::ready(Ok(Info::new(name.clone(), last_of(&claims), claims)))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        let queues = self.queues.lock();
        let wanted = queues.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        let wanted = wanted.filter(|(name, _)| page.begins_before(name));
        let info = |(name, queue): (&Name, &MemoryQueue)| {
            let claims = queue.claims();
            Info::new(name.clone(), last_of(&claims), claims)
        };
        let mut resources: Vec<Info> = wanted.map(info).collect();
        drop(queues);
        resources.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut listing = Listing::default();
        let _ = resources.into_iter().all(|info| listing.add(info, page));
        Reply::ready(Ok(listing))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        if self.end_grant(name, token, how.now, Loss::Evicted, how.reason.as_deref().unwrap_or_default()) {
            return Reply::ready(Ok(()));
        }
        Reply::ready(Err(Error::no_grant(name.clone(), token).on("memory")))
    }

    fn stored_permits<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Option<u32>>> {
        Reply::ready(Ok(self.with_queue(name, |queue| queue.limit)))
    }

    fn set_permits<'a>(&'a self, name: &'a Name, limit: Option<u32>) -> Reply<'a, Result<()>> {
        self.set_limit(name, limit);
        Reply::ready(Ok(()))
    }

    fn records(&self, runtime: &Runtime) -> Option<Arc<dyn RecordStore>> {
        let records = Arc::clone(&self.records);
        Some(Arc::new(RecordsOfClient { records, runtime: runtime.clone() }))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        let reach = Finding::note("reach", "locks are visible in this process only, and end with it")
            .advice("use sqlite: between processes, redis: between machines");
        Reply::ready(Ok(vec![reach].into()))
    }
}

impl Memory {
    /// Forgets all grants of a lock, as an engine does that has lost its data. Returns how many there were.
    pub(crate) fn forget(&self, name: &Name) -> usize {
        let claims = self.with_queue(name, |queue| queue.claims());
        let tokens = claims.into_iter().filter_map(|claim| claim.token);
        tokens.filter(|token| self.end_grant(name, *token, true, Loss::Deleted, "")).count()
    }
}

fn last_of(claims: &[ClaimInfo]) -> Option<Token> {
    claims.iter().filter_map(|claim| claim.token).max()
}

/// Opens `memory:` and `memory:NAME`.
pub(crate) fn open(address: BackendUrl, _: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    // By the process, too, because no claim of a parent ever leaves the copy of its engine that a forked child has.
    type Shared = HashMap<(u32, String), Weak<Memory>>;
    static SHARED: OnceLock<Mutex<Shared>> = OnceLock::new();
    let name = match address.only(&[]).and_then(|()| address.decoded()) {
        Ok(name) => name,
        Err(error) => return Reply::ready(Err(error)),
    };
    if name.is_empty() {
        return Reply::ready(Ok(Memory::new()));
    }
    let mut shared = SHARED.get_or_init(Mutex::default).lock();
    shared.retain(|_, memory| memory.strong_count() > 0);
    let key = (std::process::id(), name);
    let known = shared.get(&key).and_then(Weak::upgrade);
    let memory = known.unwrap_or_else(|| {
        let memory = Memory::new();
        shared.insert(key, Arc::downgrade(&memory));
        memory
    });
    Reply::ready(Ok(memory))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::testing::NoTasks;
    use crate::time::Clock;

    /// Returns where the engine is that this URL opens, and the engine.
    fn opened(url: &str) -> (usize, Arc<dyn Backend>) {
        let runtime = Runtime::for_client(1, Clock::manual(), Arc::new(NoTasks));
        let address = BackendUrl::parse(url).unwrap();
        let Poll::Ready(Ok(engine)) =
            pin!(open(address, runtime)).poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("it opens at once")
        };
        (Arc::as_ptr(&engine).cast::<()>().addr(), engine)
    }

    #[test]
    fn a_forked_child_shares_no_lock_with_its_parent() {
        let (at, engine) = opened("memory:forked");
        assert_eq!(at, opened("memory:forked").0);
        drop(crate::testing::fork_when_dropped(move || {
            assert_ne!(at, opened("memory:forked").0);
            drop(engine);
        }));
    }
}
