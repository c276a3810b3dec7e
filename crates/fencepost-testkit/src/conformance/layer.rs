//! A layer that loses all renewals, or counts the claims.

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Conversion, Entry, Error, ErrorKind, How, Leave, Left, Operator,
    Place, Reply, Request, Session,
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
}

impl Backend for Layer {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        self.claims.count.fetch_add(1, Ordering::SeqCst);
        let inner = Arc::clone(&self.inner).entry(Arc::clone(&claim), how);
        Entry::new(claim, how, LayerPlace { inner, deaf: self.deaf, claims: Arc::clone(&self.claims) })
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

struct LayerPlace {
    inner: Entry,
    deaf: bool,
    claims: Arc<Claims>,
}

impl Place for LayerPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        if self.claims.are_together() {
            return self.inner.ask();
        }
        Request::drops(async {
            while !self.claims.are_together() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.inner.ask().await
        })
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.inner.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        self.inner.leave(how, may_have_left)
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        let session = self.inner.session(holds)?;
        Some(if self.deaf { Arc::new(DeafSession(session)) } else { session })
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        self.inner.convert(to)
    }

    fn abandon(&mut self, asking: bool) {
        self.inner.abandon(asking);
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
