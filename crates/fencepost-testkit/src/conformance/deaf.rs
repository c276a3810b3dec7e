//! A layer that loses all renewals.

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Entry, Error, ErrorKind, Eviction, Info, Listing, Moment, Name,
    Page, Removed, Renewal, Reply, Session, Token, Validity,
};
use std::sync::Arc;
use std::task::{Context, Poll};

/// Passes on everything but renewals.
pub(super) struct Deaf(pub(super) Arc<dyn Backend>);

impl Backend for Deaf {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(DeafEntry(self.0.enter(claim)))
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(DeafEntry(self.0.attach(claim)))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info, Error>> {
        self.0.inspect(name)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing, Error>> {
        self.0.list(prefix, page)
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<(), Error>> {
        self.0.evict(name, token, how)
    }

    fn reach(&self) -> Reply<'_, Result<(), Error>> {
        self.0.reach()
    }

    fn leave_caller_runtime(&self) {
        self.0.leave_caller_runtime();
    }

    fn close(&self) -> Reply<'_, ()> {
        self.0.close()
    }
}

struct DeafEntry(Box<dyn Entry>);

impl Entry for DeafEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt, Error>> {
        self.0.attempt()
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, until: Moment) -> Poll<()> {
        self.0.poll_wait(cx, until)
    }

    fn renewal(&self) -> Option<Renewal> {
        let Renewal { claim, session } = self.0.renewal()?;
        Some(Renewal { claim, session: Arc::new(DeafSession(session)) })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed, Error>> {
        self.0.withdraw()
    }

    fn release(&mut self) -> Reply<'_, Result<Removed, Error>> {
        self.0.release()
    }

    fn detach(&mut self) -> Reply<'_, Result<(), Error>> {
        self.0.detach()
    }
}

struct DeafSession(Arc<dyn Session>);

impl Session for DeafSession {
    fn id(&self) -> u64 {
        self.0.id()
    }

    fn validity(&self) -> &Arc<Validity> {
        self.0.validity()
    }

    fn renew<'a>(&'a self, _due: &'a [Arc<Claim>]) -> Reply<'a, Result<(), Error>> {
        Reply::ready(Err(
            Error::new(ErrorKind::Unreachable, "no renewal gets through, as the test wants it").unknown()
        ))
    }
}
