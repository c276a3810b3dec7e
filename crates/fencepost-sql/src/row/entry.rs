//! Implements core's [`Entry`]: one claim, and the transaction that it waits or holds in.

use std::any::Any;
use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::{Attempt, Claim, Entry, Error, Removed, Renewal, Reply, Result};

use crate::row::acquire::{self, Acquiring};
use crate::row::client::RowClient;
use crate::row::held::{Held, HeldSession};
use crate::row::server::RowServer;

pub(crate) struct RowEntry<S: RowServer> {
    client: Arc<RowClient<S>>,
    claim: Arc<Claim>,
    phase: Phase<S>,
    native: Option<Box<dyn Any + Send>>,
    removed: Option<Removed>,
}

enum Phase<S: RowServer> {
    New,
    Acquiring(Acquiring<S>),
    Holding(Arc<Held<S>>),
    Gone,
}

impl<S: RowServer> RowEntry<S> {
    pub(crate) fn new(client: &Arc<RowClient<S>>, claim: Arc<Claim>) -> RowEntry<S> {
        RowEntry { client: Arc::clone(client), claim, phase: Phase::New, native: None, removed: None }
    }

    async fn enter(&mut self) -> Result<Attempt> {
        if let Phase::New = self.phase {
            self.phase = Phase::Acquiring(acquire::start(&self.client, &self.claim));
        }
        if let Phase::Acquiring(acquiring) = &self.phase {
            acquiring.queued(&self.claim).await;
            match acquiring.take() {
                None => return Ok(Attempt::Blocked { again: None }),
                Some(Ok(Some(held))) => self.phase = Phase::Holding(held),
                Some(Ok(None)) if self.claim.waits => self.phase = Phase::Gone,
                Some(Ok(None)) => {
                    self.phase = Phase::New;
                    return Ok(Attempt::Blocked { again: None });
                }
                Some(Err(failure)) => {
                    self.phase = Phase::New;
                    return Err(failure.on(self.client.engine));
                }
            }
        }
        let Phase::Holding(held) = &self.phase else { return Ok(Attempt::Gone) };
        if held.is_valid() {
            return Ok(Attempt::Granted(held.token));
        }
        let _ = held.finish(false).await;
        self.phase = Phase::Gone;
        Ok(Attempt::Gone)
    }

    async fn remove(&mut self, commit: bool) -> Result<Removed> {
        if let Phase::Acquiring(acquiring) = &self.phase {
            if acquiring.cancel() {
                return Ok(Removed::Withdrawn);
            }
            // A statement that was sent may be granted: its reply comes first.
            acquiring.ended().await;
            if let Some(Ok(Some(held))) = acquiring.take() {
                self.phase = Phase::Holding(held);
            }
        }
        let Phase::Holding(held) = &self.phase else { return Ok(Removed::Nothing) };
        held.finish(commit).await.map_err(|failure| {
            // Nothing is left that another request could remove.
            self.removed = Some(Removed::Nothing);
            let uncertain = commit && failure.uncertain;
            let error = failure.on(self.client.engine);
            if uncertain { error.unknown_for_good() } else { error }
        })
    }

    fn removal(&mut self, commit: bool) -> Reply<'_, Result<Removed>> {
        match self.removed {
            Some(removed) => Reply::ready(Ok(removed)),
            None => Reply::coming(async move {
                let removed = self.remove(commit).await?;
                self.removed = Some(removed);
                Ok(removed)
            }),
        }
    }
}

impl<S: RowServer> Drop for RowEntry<S> {
    fn drop(&mut self) {
        if self.removed.is_some() {
            return;
        }
        // Core gave up.
        if let Phase::Holding(held) = std::mem::replace(&mut self.phase, Phase::Gone) {
            self.claim.runtime.spawn(async move { drop(held.finish(false).await) });
        }
    }
}

impl<S: RowServer> Entry for RowEntry<S> {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        match &self.phase {
            Phase::Gone => Reply::ready(Ok(Attempt::Gone)),
            _ if self.removed.is_some() => Reply::ready(Ok(Attempt::Gone)),
            Phase::New | Phase::Acquiring(_) | Phase::Holding(_) => Reply::coming(self.enter()),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.phase {
            Phase::Acquiring(acquiring) => acquiring.poll(cx),
            Phase::New | Phase::Holding(_) | Phase::Gone => Poll::Pending,
        }
    }

    fn renewal(&self) -> Option<Renewal> {
        let Phase::Holding(held) = &self.phase else { return None };
        let session = Arc::new(HeldSession(Arc::clone(held)));
        Some(Renewal { claim: Arc::clone(&self.claim), session })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        self.removal(false)
    }

    fn release(&mut self) -> Reply<'_, Result<Removed>> {
        let commit = self.claim.is_released() && self.claim.is_valid();
        self.removal(commit)
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        let message = "detached leases: a row lock ends with its transaction; use mode=table";
        Reply::ready(Err(Error::unsupported(self.client.engine, message)))
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        if let (Phase::Holding(held), None) = (&self.phase, &self.native) {
            self.native = held.transaction.native();
        }
        self.native.as_deref_mut()
    }
}
