//! A claim that waits in the server's queue, on a connection of its own.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, Moment, Token};
use futures_util::future::{Either, select};
use tokio::sync::Notify;

use crate::client::PostgresClient;
use crate::conn::pool::Exclusive;
use crate::error::Failure;

/// A claim that waits. The task that waits runs on the client's own thread. Dropping this cancels it.
pub(crate) struct Wait {
    shared: Arc<Inner>,
}

struct Inner {
    cancelled: Notify,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    outcome: Option<Result<Grant, Failure>>,
    waker: Option<Waker>,
    /// Nobody takes the outcome any more.
    abandoned: bool,
}

/// A lock that was waited for.
pub(crate) struct Grant {
    pub(crate) exclusive: Exclusive,
    pub(crate) token: Token,
    /// When the statement was sent from which the lease counts.
    pub(crate) sent: Moment,
}

impl Wait {
    pub(crate) fn start(client: &Arc<PostgresClient>, claim: &Arc<Claim>, key: i64, shared: bool) -> Wait {
        let inner = Arc::new(Inner { cancelled: Notify::new(), slot: Mutex::default() });
        let (own, client, claim) = (Arc::clone(&inner), Arc::clone(client), Arc::clone(claim));
        client.runtime.clone().spawn(async move {
            if let Some(outcome) = wait(&own, &client, &claim, key, shared).await {
                own.put(outcome).await;
            }
        });
        Wait { shared: inner }
    }

    /// Takes the outcome, if it is there.
    pub(crate) fn take(&self) -> Option<Result<Grant, Failure>> {
        self.shared.slot.lock().outcome.take()
    }

    /// Is ready when there is an outcome.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut slot = self.shared.slot.lock();
        if slot.outcome.is_some() {
            return Poll::Ready(());
        }
        slot.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let outcome = {
            let mut slot = self.shared.slot.lock();
            slot.abandoned = true;
            slot.outcome.take()
        };
        self.shared.cancelled.notify_one();
        // A grant that nobody took: its connection ends, and with it the lock.
        drop(outcome);
    }
}

impl Inner {
    async fn put(&self, outcome: Result<Grant, Failure>) {
        let mut slot = self.slot.lock();
        if slot.abandoned {
            return;
        }
        slot.outcome = Some(outcome);
        if let Some(waker) = slot.waker.take() {
            drop(slot);
            waker.wake();
        }
    }
}

/// Waits for the lock. `None`: the claim has given up, and nothing of it is left.
async fn wait(
    inner: &Inner,
    client: &PostgresClient,
    claim: &Claim,
    key: i64,
    shared: bool,
) -> Option<Result<Grant, Failure>> {
    let ttl = claim.ttl();
    let connecting = pin!(client.pool.exclusive(ttl));
    let mut exclusive = match select(connecting, pin!(inner.cancelled.notified())).await {
        Either::Left((Ok(exclusive), _)) => exclusive,
        Either::Left((Err(failure), _)) => return Some(Err(failure)),
        Either::Right(_) => return None,
    };
    let connection = Arc::clone(&exclusive.connection);
    let waiting = pin!(connection.lock(key, shared));
    match select(waiting, pin!(inner.cancelled.notified())).await {
        Either::Left((Ok(()), _)) => {}
        Either::Left((Err(failure), _)) => return Some(Err(failure)),
        Either::Right((_, waiting)) => {
            connection.cancel(waiting).await;
            exclusive.set_clean();
            return None;
        }
    }
    // The server's idle timeout may have started long before the reply arrived: the lease counts from here.
    let sent = claim.runtime.clock().now();
    Some(connection.confirm(ttl).await.map(|token| Grant { exclusive, token, sent }))
}
