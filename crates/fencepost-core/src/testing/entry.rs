//! A claim at an engine for tests.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::fault::Faults;
use crate::backend::claim::Claim;
use crate::backend::{Attempt, Reply, Session};
use crate::entry::Entry;
use crate::entry::place::{Conversion, Leave, Left, Place, Request};
use crate::error::Result;

/// A claim whose requests meet the fault of its lock first.
pub(super) struct TestPlace {
    entry: Entry,
    claim: Arc<Claim>,
    faults: Arc<Faults>,
}

impl TestPlace {
    pub(super) fn new(entry: Entry, claim: Arc<Claim>, faults: Arc<Faults>) -> TestPlace {
        TestPlace { entry, claim, faults }
    }

    fn ask_entry<'a, T: Unpin + Send + 'a>(
        &'a mut self,
        ask: impl FnOnce(&'a mut Entry) -> Request<'a, T> + Send + 'a,
    ) -> Request<'a, T> {
        let TestPlace { entry, claim, faults } = self;
        match faults.of(claim.want().name.as_str()) {
            None => ask(entry),
            Some(fault) => Request::drops(async move {
                fault.strike(claim.runtime.clock()).await?;
                ask(entry).await
            }),
        }
    }
}

impl Place for TestPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        self.ask_entry(|entry| entry.ask())
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        self.ask_entry(move |entry| entry.leave(how, may_have_left))
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        let session = self.entry.session(holds)?;
        let id = self.faults.number(self.claim.want().name.as_str());
        Some(Arc::new(TestSession { id, session, faults: Arc::clone(&self.faults) }))
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        self.ask_entry(move |entry| entry.convert(to))
    }

    fn abandon(&mut self, asking: bool) {
        self.entry.abandon(asking);
    }
}

/// Renews the claims on one lock: with the same session, a lock that fails would fail others.
struct TestSession {
    id: u64,
    session: Arc<dyn Session>,
    faults: Arc<Faults>,
}

impl Session for TestSession {
    fn id(&self) -> u64 {
        self.id
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        let fault = due.first().and_then(|claim| {
            let fault = self.faults.of(claim.want().name.as_str())?;
            Some((fault, claim.runtime.clock()))
        });
        match fault {
            None => self.session.renew(due),
            Some((fault, clock)) => Reply::coming(async move {
                fault.strike(clock).await?;
                self.session.renew(due).await
            }),
        }
    }
}
