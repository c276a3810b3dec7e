//! A claim at an engine for tests.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::fault::Faults;
use crate::backend::claim::Claim;
use crate::backend::{Attempt, Entry, Removed, Renewal, Reply, Session};
use crate::error::Result;
use crate::token::Token;

/// A claim whose requests meet the fault of its lock first.
pub(super) struct TestEntry {
    entry: Box<dyn Entry>,
    claim: Arc<Claim>,
    faults: Arc<Faults>,
}

impl TestEntry {
    pub(super) fn new(entry: Box<dyn Entry>, claim: Arc<Claim>, faults: Arc<Faults>) -> TestEntry {
        TestEntry { entry, claim, faults }
    }

    fn ask<'a, T: Send + 'a>(
        &'a mut self,
        ask: impl FnOnce(&'a mut dyn Entry) -> Reply<'a, Result<T>> + Send + 'a,
    ) -> Reply<'a, Result<T>>
    where
        Reply<'a, Result<T>>: Future<Output = Result<T>>,
    {
        let TestEntry { entry, claim, faults } = self;
        match faults.of(claim.want().name.as_str()) {
            None => ask(&mut **entry),
            Some(fault) => Reply::coming(async move {
                fault.strike(claim.runtime.clock()).await?;
                ask(&mut **entry).await
            }),
        }
    }
}

impl Entry for TestEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        self.ask(|entry| entry.attempt())
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_wait(cx)
    }

    fn renewal(&self) -> Option<Renewal> {
        let Renewal { claim, session } = self.entry.renewal()?;
        let id = self.faults.number(claim.want().name.as_str());
        let session = TestSession { id, session, faults: Arc::clone(&self.faults) };
        Some(Renewal { claim, session: Arc::new(session) })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        self.ask(|entry| entry.withdraw())
    }

    fn release(&mut self) -> Reply<'_, Result<Removed>> {
        self.ask(|entry| entry.release())
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        self.ask(|entry| entry.detach())
    }

    fn upgrade(&mut self, join: bool) -> Reply<'_, Result<Attempt>> {
        self.ask(move |entry| entry.upgrade(join))
    }

    fn downgrade(&mut self, token: Token) -> Reply<'_, Result<()>> {
        self.ask(move |entry| entry.downgrade(token))
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
