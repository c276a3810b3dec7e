//! A layer that loses all renewals, or counts the claims.

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Entry, Error, ErrorKind, Operator, Removed, Renewal, Reply,
    Session, Token,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// Passes on everything but what it was made for.
pub(super) struct Layer {
    inner: Arc<dyn Backend>,
    deaf: bool,
    claims: Arc<Claims>,
}

/// The claims that were made.
#[derive(Default)]
pub(super) struct Claims {
    count: AtomicUsize,
    /// No attempt is sent before this many claims were made.
    together: AtomicUsize,
}

impl Claims {
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Sends no attempt before `more` claims are made from now on.
    pub(super) fn hold_back(&self, more: usize) {
        self.together.store(self.count() + more, Ordering::SeqCst);
    }

    fn are_together(&self) -> bool {
        self.count() >= self.together.load(Ordering::SeqCst)
    }
}

impl Layer {
    /// Loses all renewals.
    pub(super) fn deaf(inner: Arc<dyn Backend>) -> Layer {
        Layer { inner, deaf: true, claims: Arc::default() }
    }

    /// Counts the claims.
    pub(super) fn counting(inner: Arc<dyn Backend>, claims: Arc<Claims>) -> Layer {
        Layer { inner, deaf: false, claims }
    }

    fn wrap(&self, inner: Box<dyn Entry>) -> Box<dyn Entry> {
        self.claims.count.fetch_add(1, Ordering::SeqCst);
        Box::new(LayerEntry { inner, deaf: self.deaf, claims: Arc::clone(&self.claims) })
    }
}

impl Backend for Layer {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        self.wrap(self.inner.enter(claim))
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        self.wrap(self.inner.attach(claim))
    }

    fn operator(&self) -> &dyn Operator {
        self.inner.operator()
    }

    fn reach(&self) -> Reply<'_, Result<(), Error>> {
        self.inner.reach()
    }

    fn leave_caller_runtime(&self) {
        self.inner.leave_caller_runtime();
    }

    fn close(&self) -> Reply<'_, ()> {
        self.inner.close()
    }
}

struct LayerEntry {
    inner: Box<dyn Entry>,
    deaf: bool,
    claims: Arc<Claims>,
}

impl Entry for LayerEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt, Error>> {
        if self.claims.are_together() {
            return self.inner.attempt();
        }
        Reply::coming(async {
            while !self.claims.are_together() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.inner.attempt().await
        })
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.inner.poll_wait(cx)
    }

    fn renewal(&self) -> Option<Renewal> {
        let Renewal { claim, session } = self.inner.renewal()?;
        if !self.deaf {
            return Some(Renewal { claim, session });
        }
        Some(Renewal { claim, session: Arc::new(DeafSession(session)) })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed, Error>> {
        self.inner.withdraw()
    }

    fn release(&mut self) -> Reply<'_, Result<Removed, Error>> {
        self.inner.release()
    }

    fn detach(&mut self) -> Reply<'_, Result<(), Error>> {
        self.inner.detach()
    }

    fn upgrade(&mut self, join: bool) -> Reply<'_, Result<Attempt, Error>> {
        self.inner.upgrade(join)
    }

    fn downgrade(&mut self, token: Token) -> Reply<'_, Result<(), Error>> {
        self.inner.downgrade(token)
    }
}

struct DeafSession(Arc<dyn Session>);

impl Session for DeafSession {
    fn id(&self) -> u64 {
        self.0.id()
    }

    fn renew<'a>(&'a self, _due: &'a [Arc<Claim>]) -> Reply<'a, Result<(), Error>> {
        Reply::ready(Err(
            Error::new(ErrorKind::Unreachable, "no renewal gets through, as the test wants it").unknown()
        ))
    }
}
