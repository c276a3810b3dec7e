//! A lock that a transaction holds for a claim.

use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use fencepost_core::{
    Claim, ErrorKind, Loss, Moment, Removed, Reply, Result as CoreResult, Session, State, Token, margin,
};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, Shared, select};

use crate::database::with;
use crate::failure::Failure;
use crate::row::client::RowClient;
use crate::row::server::{Renewed, RowServer};
use crate::row::transaction::OpenTransaction;

/// A lock that a transaction holds for a claim.
pub(crate) struct Held<S: RowServer> {
    pub(crate) client: Arc<RowClient<S>>,
    pub(crate) claim: Arc<Claim>,
    pub(crate) transaction: Arc<OpenTransaction<S>>,
    pub(crate) token: Token,
    /// The number of the claim's note.
    note: i64,
    finishing: OnceLock<Finishing>,
}

type Finishing = Shared<BoxFuture<'static, Result<Removed, Failure>>>;

impl<S: RowServer> Held<S> {
    /// Takes over a transaction that was granted the lock by a statement sent at `sent`.
    pub(crate) fn new(
        client: &Arc<RowClient<S>>,
        claim: &Arc<Claim>,
        transaction: Arc<OpenTransaction<S>>,
        (note, token): (i64, Token),
        sent: Moment,
    ) -> Arc<Held<S>> {
        let held = Arc::new(Held {
            client: Arc::clone(client),
            claim: Arc::clone(claim),
            transaction,
            token,
            note,
            finishing: OnceLock::new(),
        });
        client.add(&held);
        claim.confirm(sent, claim.ttl());
        let ended = held.transaction.ended();
        claim.runtime.spawn(watch(Arc::clone(claim), ended, Arc::downgrade(&held)));
        held
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.finishing.get().is_none() && self.claim.is_valid() && !self.transaction.has_ended()
    }

    /// Ends the transaction, once for all callers: commits it, or undoes it. The first caller decides which.
    ///
    /// The first poll sends. Dropped later, it takes effect or not: call this again to know.
    pub(crate) fn finish(self: &Arc<Held<S>>, commit: bool) -> Finishing {
        let finishing = self.finishing.get_or_init(|| {
            let held = Arc::clone(self);
            async move {
                let removed = if commit { held.commit().await } else { held.roll_back().await };
                held.client.remove(held.claim.id);
                removed
            }
            .boxed()
            .shared()
        });
        finishing.clone()
    }

    async fn commit(&self) -> Result<Removed, Failure> {
        if self.transaction.has_ended() {
            self.client.forget(self.note);
            return Ok(Removed::Nothing);
        }
        let committed = self.transaction.commit(self.client.statements.remove(self.note)).await;
        match committed {
            Ok(()) => {
                self.client.removed(self.note);
                Ok(Removed::Released)
            }
            Err(failure) => {
                self.client.forget(self.note);
                // The connection had ended, for example by an eviction, and nothing was committed: the lock was lost.
                let ended = failure.kind == ErrorKind::Unreachable && !failure.uncertain;
                if ended { Ok(Removed::Nothing) } else { Err(failure) }
            }
        }
    }

    async fn roll_back(&self) -> Result<Removed, Failure> {
        let valid = !matches!(self.claim.validity.state(self.claim.runtime.clock().now()), State::Lost(_));
        let ended = self.transaction.has_ended();
        if ended || self.transaction.roll_back(self.client.statements.remove(self.note)).await.is_err() {
            // The server undoes a transaction whose connection ends.
            self.transaction.end();
            self.client.forget(self.note);
        } else {
            self.client.removed(self.note);
        }
        Ok(if valid && !ended { Removed::Released } else { Removed::Nothing })
    }
}

impl<S: RowServer> Drop for Held<S> {
    fn drop(&mut self) {
        if self.finishing.get().is_none() {
            // Nobody waits for its end.
            self.transaction.end();
            self.client.remove(self.claim.id);
            self.client.forget(self.note);
        }
    }
}

/// Undoes the transaction when its connection or its lease ends. A part of the lease is kept as a margin for the holder: another claim may
/// hold the lock only after the whole.
async fn watch<S: RowServer>(claim: Arc<Claim>, ended: BoxFuture<'static, ()>, held: Weak<Held<S>>) {
    let clock = claim.runtime.clock();
    let lease = async {
        let mut until = claim.validity.until();
        loop {
            // The lease of an evicted holder goes on, and its validity does not.
            until = until.max(claim.validity.until());
            let end = until + margin(claim.ttl());
            if end <= clock.now() || clock.is_stopped() {
                return;
            }
            clock.sleep_until(end).await;
        }
    };
    let is_ended = matches!(select(ended, pin!(lease)).await, Either::Left(_));
    let Some(held) = held.upgrade().filter(|held| held.finishing.get().is_none()) else { return };
    if is_ended {
        claim.validity.end(claim.runtime.session_loss());
    }
    let _ = held.finish(false).await;
}

/// Renews the claim that a transaction holds for.
pub(crate) struct HeldSession<S: RowServer>(pub(crate) Arc<Held<S>>);

impl<S: RowServer> Session for HeldSession<S> {
    fn id(&self) -> u64 {
        Arc::as_ptr(&self.0).addr() as u64
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, CoreResult<()>> {
        Reply::coming(async move {
            let held = &self.0;
            let (sent, ttl) = (held.claim.runtime.clock().now(), held.claim.ttl());
            if due.is_empty() || !held.is_valid() {
                return Ok(());
            }
            let renewed = held.renew(ttl).await.map_err(|failure| failure.on(held.client.engine))?;
            match renewed {
                Some(reason) => {
                    held.claim.validity.end_with(Loss::Evicted, reason);
                }
                None => drop(held.claim.confirm(sent, ttl)),
            }
            Ok(())
        })
    }
}

impl<S: RowServer> Held<S> {
    /// Restarts the lease. Returns the reason if the holder was evicted.
    async fn renew(&self, ttl: Duration) -> Result<Option<String>, Failure> {
        let look = with(&self.client.statements.look, vec![self.note.into()]);
        let rows = match self.transaction.renew(ttl, look.clone()).await? {
            Renewed::Open(rows) => rows,
            // The transaction answers no question any more.
            Renewed::Failed => self.client.run(vec![look]).await?.into_iter().flatten().collect(),
            Renewed::Over => {
                self.claim.validity.end(Loss::Deleted);
                let message = "a statement of the holder ended the transaction, and with it the lock; leave COMMIT and ROLLBACK to the \
                               guard";
                return Err(Failure::new(ErrorKind::Lost, message));
            }
        };
        Ok(rows.first().and_then(|row| row.text(0)).map(ToString::to_string))
    }
}
