//! A claim that waits in the server's queue, on a connection of its own.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{Claim, Moment, Token, Waiter, jitter};
use futures_util::future::{Either, select};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::claim::attempt::{FreshGrant, holder, try_lock};
use crate::client::MysqlClient;
use crate::conn::pool::Exclusive;
use crate::error::Failure;
use crate::keys::Key;

/// How long a claim without a connection pauses between two attempts: from once to twice this time.
const POLL: Duration = Duration::from_millis(50);

/// A claim that waits. The task that waits runs on the client's own thread. Dropping this cancels it.
pub(crate) struct Wait {
    shared: Arc<Inner>,
}

struct Inner {
    cancelled: Notify,
    slot: Waiter<Slot>,
}

#[derive(Default)]
struct Slot {
    outcome: Option<Result<Grant, Failure>>,
    /// The server answers, and the claim waits.
    queued: bool,
    /// Nobody takes the outcome any more.
    abandoned: bool,
}

/// A lock that was waited for.
pub(crate) enum Grant {
    /// In the server's queue. The connection is the claim's alone.
    Exclusive {
        exclusive: Exclusive,
        token: Token,
        /// When the statement was sent from which the lease counts.
        sent: Moment,
    },
    /// It was free when the claim tried again.
    Fresh(FreshGrant),
}

impl Wait {
    pub(crate) fn start(client: &Arc<MysqlClient>, claim: &Arc<Claim>, key: Key) -> Wait {
        let inner = Arc::new(Inner { cancelled: Notify::new(), slot: Waiter::default() });
        let (own, client, claim) = (Arc::clone(&inner), Arc::clone(client), Arc::clone(claim));
        client.runtime.clone().spawn(async move {
            if let Some(outcome) = wait(&own, &client, &claim, &key).await {
                own.put(outcome);
            }
        });
        Wait { shared: inner }
    }

    /// Takes the outcome, if it is there.
    pub(crate) fn take(&self) -> Option<Result<Grant, Failure>> {
        self.shared.slot.with(|slot| slot.outcome.take())
    }

    /// Returns when the claim stands in the queue, or there is an outcome.
    pub(crate) async fn queued(&self) {
        poll_fn(|cx| self.shared.slot.poll(cx, |slot| slot.outcome.is_some() || slot.queued)).await;
    }

    /// Is ready when there is an outcome.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.slot.poll(cx, |slot| slot.outcome.is_some())
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let outcome = self.shared.slot.with(|slot| {
            slot.abandoned = true;
            slot.outcome.take()
        });
        self.shared.cancelled.notify_one();
        // A grant that nobody took: its connection ends, and with it the lock.
        drop(outcome);
    }
}

impl Inner {
    fn put(&self, outcome: Result<Grant, Failure>) {
        let mut outcome = Some(outcome);
        self.slot.tell(|slot| {
            if !slot.abandoned {
                slot.outcome = outcome.take();
            }
        });
    }
}

/// Waits for the lock. `None`: the claim has given up, and nothing of it is left.
async fn wait(
    inner: &Inner,
    client: &Arc<MysqlClient>,
    claim: &Claim,
    key: &Key,
) -> Option<Result<Grant, Failure>> {
    let ttl = claim.ttl();
    let permit = match client.pool.try_permit() {
        Some(permit) => permit,
        None => match permit_or_lock(inner, client, claim, key).await? {
            Ok(Either::Left(permit)) => permit,
            Ok(Either::Right(grant)) => return Some(Ok(Grant::Fresh(grant))),
            Err(failure) => return Some(Err(failure)),
        },
    };
    let connecting = pin!(client.pool.exclusive(permit, ttl));
    let mut exclusive = match select(connecting, pin!(inner.cancelled.notified())).await {
        Either::Left((Ok(exclusive), _)) => exclusive,
        Either::Left((Err(failure), _)) => return Some(Err(failure)),
        Either::Right(_) => return None,
    };
    let connection = Arc::clone(&exclusive.connection);
    let holder = holder(claim);
    let mut waiting = pin!(connection.wait(key, &holder));
    let granted = {
        // This connection has no reply while it waits: another one tells that the claim stands in the queue.
        let noting = pin!(async {
            if client.await_queued(&connection, ttl).await.is_ok() {
                inner.slot.tell(|slot| slot.queued = true);
            }
            pending::<()>().await
        });
        let waiting = select(waiting.as_mut(), noting);
        match select(waiting, pin!(inner.cancelled.notified())).await {
            Either::Left((Either::Left((granted, _)), _)) => Some(granted),
            Either::Left((Either::Right(_), _)) => unreachable!("it never ends"),
            Either::Right(_) => None,
        }
    };
    match granted {
        Some(Ok(())) => {}
        Some(Err(failure)) => return Some(Err(failure)),
        None => {
            client.cancel(&connection, key, ttl, waiting).await;
            exclusive.set_clean();
            return None;
        }
    }
    // The server's idle timeout may have started long before the reply arrived: the lease counts from here.
    let sent = claim.runtime.clock().now();
    let drawn = connection.draw(key, &holder).await;
    Some(drawn.map(|token| Grant::Exclusive { exclusive, token, sent }))
}

/// Waits until the claim may have a connection, and tries meanwhile: the holders of all connections may be waiting for others. `None`:
/// the claim has given up, and nothing of it is left.
async fn permit_or_lock(
    inner: &Inner,
    client: &Arc<MysqlClient>,
    claim: &Claim,
    key: &Key,
) -> Option<Result<Either<OwnedSemaphorePermit, FreshGrant>, Failure>> {
    if let Err(failure) = client.reach().await {
        return Some(Err(failure));
    }
    inner.slot.tell(|slot| slot.queued = true);
    let clock = claim.runtime.clock();
    let mut permit = pin!(client.pool.permit());
    // Claims that began together do not try together.
    let pause = jitter(2 * POLL, clock.now().as_nanos());
    loop {
        let paused = pin!(clock.sleep_until(clock.now() + pause));
        let first = select(permit.as_mut(), paused);
        match select(first, pin!(inner.cancelled.notified())).await {
            Either::Left((Either::Left((permit, _)), _)) => return Some(permit.map(Either::Left)),
            Either::Left((Either::Right(_), _)) => {}
            Either::Right(_) => return None,
        }
        // It runs to its end, also when the claim gives up meanwhile: a grant that nobody takes is released.
        match try_lock(client, claim, key).await {
            Ok(None) => {}
            Ok(Some(grant)) => return Some(Ok(Either::Right(grant))),
            Err(failure) => return Some(Err(failure)),
        }
    }
}
