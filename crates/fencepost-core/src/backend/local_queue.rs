//! The local gate: where an engine takes all claims of a process for the same, they line up here first.

use std::any::Any;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::backend::capabilities::{Capabilities, Identity};
use crate::backend::claim::Claim;
use crate::backend::{Attempt, Backend, Entry, Removed, Renewal, Reply};
use crate::error::Result;
use crate::memory::Memory;
use crate::name::Name;
use crate::operator::info::{Eviction, Info, Listing, Page};
use crate::operator::report::Report;
use crate::time::Moment;
use crate::token::Token;

/// A layer for engines whose identity is the process: the claims of this client first get a turn in a line of their own, by the
/// same rule of admission, and only those who have it stand at the engine. So two tasks exclude each other although the engine
/// would let the second one in, and readers of one process still read together.
///
/// A turn that was passed to a waiter that is dropped passes on: the line is a [`Memory`] whose turns do not expire.
pub struct LocalQueue {
    line: Arc<Memory>,
    inner: Arc<dyn Backend>,
}

impl LocalQueue {
    /// A gate before `inner`.
    pub fn new(inner: Arc<dyn Backend>) -> LocalQueue {
        LocalQueue { line: Memory::turns(), inner }
    }
}

impl Backend for LocalQueue {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            identity: Identity::Claim,
            upgrade: false,
            barging: false,
            stored_permits: false,
            ..self.inner.capabilities()
        }
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        // The turn is not the grant: it has a validity of its own, which nobody looks at.
        let mut turn = Claim::new(
            claim.id.derive(0),
            claim.want().clone(),
            claim.ttl(),
            Arc::clone(&claim.holder),
            claim.runtime.clone(),
        );
        turn.join = claim.join;
        Box::new(GateEntry {
            turn: self.line.enter(Arc::new(turn)),
            has_turn: false,
            inner: self.inner.enter(claim),
        })
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        self.inner.attach(claim)
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.inner.inspect(name)
    }

    fn inspect_claims<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.inner.inspect_claims(name)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.inner.list(prefix, page)
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        self.inner.evict(name, token, how)
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        self.inner.examine()
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        self.inner.reach()
    }

    fn leave_caller_runtime(&self) {
        self.inner.leave_caller_runtime();
    }

    fn close(&self) -> Reply<'_, ()> {
        self.inner.close()
    }
}

struct GateEntry {
    turn: Box<dyn Entry>,
    has_turn: bool,
    inner: Box<dyn Entry>,
}

/// The engine first, then the turn: an entry is dropped when the engine has nothing of it any more (or its lease has ended),
/// so the next one in our line does not meet our own grant there.
impl Drop for GateEntry {
    fn drop(&mut self) {
        let Reply::Ready(_) = self.turn.withdraw() else { unreachable!("memory answers on the spot") };
    }
}

impl Entry for GateEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        if self.has_turn {
            return self.inner.attempt();
        }
        // Memory answers on the spot.
        let Reply::Ready(Some(answer)) = self.turn.attempt() else {
            unreachable!("memory answers on the spot")
        };
        match answer {
            Ok(Attempt::Granted(_)) => {
                self.has_turn = true;
                self.inner.attempt()
            }
            other => Reply::ready(other),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, until: Moment) -> Poll<()> {
        if self.has_turn { self.inner.poll_wait(cx, until) } else { self.turn.poll_wait(cx, until) }
    }

    fn renewal(&self) -> Option<Renewal> {
        self.has_turn.then(|| self.inner.renewal()).flatten()
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        if self.has_turn { self.inner.withdraw() } else { self.turn.withdraw() }
    }

    fn release(&mut self) -> Reply<'_, Result<Removed>> {
        if self.has_turn { self.inner.release() } else { self.turn.withdraw() }
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        self.inner.detach()
    }

    fn raise(&mut self, to: Token) -> Reply<'_, Result<()>> {
        self.inner.raise(to)
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        self.inner.native()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::admission::Mode;
    use crate::backend::claim::Want;
    use crate::backend::claim_id::ClaimId;
    use crate::operator::holder::HolderInfo;
    use crate::runtime::Runtime;
    use crate::runtime::spawner::{Spawner, Task};
    use crate::testing::flag;
    use crate::time::Clock;

    struct Nobody;

    impl Spawner for Nobody {
        fn spawn(&self, _: Task) {}
    }

    fn claim(client: u64, id: u128) -> Arc<Claim> {
        let runtime = Runtime::for_client(client, Clock::manual(), Arc::new(Nobody));
        let want = Want { name: Name::new("lock").unwrap(), mode: Mode::Exclusive };
        let holder = HolderInfo::labelled("test");
        Arc::new(Claim::new(ClaimId::from_u128(id), want, Duration::from_secs(9), holder, runtime))
    }

    fn is_granted(entry: &mut dyn Entry) -> bool {
        let Reply::Ready(Some(Ok(attempt))) = entry.attempt() else { panic!("memory answers on the spot") };
        matches!(attempt, Attempt::Granted(_))
    }

    /// The first waits at the engine for another client, the second in the line of its own client for the first.
    #[test]
    fn a_waiter_is_woken_by_what_it_waits_for() {
        let engine = Memory::with_process_identity();
        let gate = LocalQueue::new(Arc::<Memory>::clone(&engine));
        assert_eq!(gate.capabilities().identity, Identity::Claim);
        let mut other = engine.enter(claim(2, 1));
        assert!(is_granted(&mut *other));
        let (mut first, mut second) = (gate.enter(claim(1, 2)), gate.enter(claim(1, 3)));
        let [by_engine, by_line] = [&mut first, &mut second].map(|entry| {
            assert!(!is_granted(&mut **entry));
            let (woken, waker) = flag();
            assert!(entry.poll_wait(&mut Context::from_waker(&waker), Moment::NEVER).is_pending());
            woken
        });
        drop(other.withdraw());
        assert!(by_engine.is_set() && is_granted(&mut *first));
        assert!(!by_line.is_set() && !is_granted(&mut *second));
        drop(first.withdraw());
        drop(first);
        assert!(by_line.is_set() && is_granted(&mut *second));
    }
}
