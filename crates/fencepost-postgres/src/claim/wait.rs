//! A claim that waits in the server's queue, on a connection of its own.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{Claim, Mode, Moment, Token, Waiter};
use futures_util::future::{Either, select};
use tokio::sync::Notify;

use crate::claim::attempt::FreshGrant;
use crate::client::PostgresClient;
use crate::conn::connection::Connection;
use crate::conn::pool::Exclusive;
use crate::error::Failure;
use crate::keys::Lock;

/// How long a reader pauses that waits for holders of permits.
const PAUSE: Duration = Duration::from_millis(50);

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
    pub(crate) fn start(client: &Arc<PostgresClient>, claim: &Arc<Claim>, lock: Lock) -> Wait {
        let inner = Arc::new(Inner { cancelled: Notify::new(), slot: Waiter::default() });
        let (own, client, claim) = (Arc::clone(&inner), Arc::clone(client), Arc::clone(claim));
        client.runtime.clone().spawn(async move {
            if let Some(outcome) = wait(&own, &client, &claim, lock).await {
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
    client: &Arc<PostgresClient>,
    claim: &Claim,
    lock: Lock,
) -> Option<Result<Grant, Failure>> {
    let is_quiet = client.waits_quietly || matches!(lock.mode, Mode::Permits { .. });
    let permit = match client.pool.try_permit() {
        Some(permit) if !is_quiet => permit,
        _ => {
            // The holders of all connections may be waiting for other locks: the claim tries meanwhile.
            let permit = async { if is_quiet { pending().await } else { client.pool.permit().await } };
            match wait_quietly(inner, client, claim, lock, pin!(permit)).await? {
                Ok(Either::Left(Ok(permit))) => permit,
                Ok(Either::Right(grant)) => return Some(Ok(Grant::Fresh(grant))),
                Ok(Either::Left(Err(failure))) | Err(failure) => return Some(Err(failure)),
            }
        }
    };
    let ttl = claim.ttl();
    let connecting = pin!(client.pool.exclusive(permit, ttl));
    let mut exclusive = match select(connecting, pin!(inner.cancelled.notified())).await {
        Either::Left((Ok(exclusive), _)) => exclusive,
        Either::Left((Err(failure), _)) => return Some(Err(failure)),
        Either::Right(_) => return None,
    };
    let connection = Arc::clone(&exclusive.connection);
    let clock = claim.runtime.clock();
    let token = loop {
        match wait_in_queue(inner, client, &connection, claim, lock).await {
            Some(Ok(Some(token))) => break token,
            Some(Err(failure)) => return Some(Err(failure)),
            // Permits are held, and the server has no queue of readers for them.
            Some(Ok(None)) => {
                let paused = pin!(clock.sleep_until(clock.now() + PAUSE));
                if let Either::Left(_) = select(paused, pin!(inner.cancelled.notified())).await {
                    continue;
                }
            }
            None => {}
        }
        if !connection.has_ended() {
            exclusive.set_clean();
        }
        return None;
    };
    // The server's idle timeout may have started long before the reply arrived: the lease counts from here.
    let sent = clock.now();
    Some(connection.set_idle(ttl).await.map(|()| Grant::Exclusive { exclusive, token, sent }))
}

/// Waits in the server's queue. No token: permits are held, and the claim is no longer in the queue. `None`: the claim has given up, and
/// nothing is locked on the connection.
async fn wait_in_queue(
    inner: &Inner,
    client: &Arc<PostgresClient>,
    connection: &Connection,
    claim: &Claim,
    lock: Lock,
) -> Option<Result<Option<Token>, Failure>> {
    let mut waiting = pin!(connection.lock(lock));
    {
        // This connection has no reply while it waits: another one tells that the claim stands in the queue.
        let noting = pin!(async {
            if client.await_queued(connection, claim.ttl()).await.is_ok() {
                inner.slot.tell(|slot| slot.queued = true);
            }
            pending::<()>().await
        });
        let waiting = select(waiting.as_mut(), noting);
        match select(waiting, pin!(inner.cancelled.notified())).await {
            Either::Left((Either::Left((granted, _)), _)) => return Some(granted),
            Either::Left((Either::Right(_), _)) => unreachable!("it never ends"),
            Either::Right(_) => {}
        }
    }
    connection.cancel(waiting).await;
    None
}

/// Waits for messages about releases and tries after each, until the claim has the lock or `other` is ready. `None`: the claim has given
/// up, and nothing of it is left.
async fn wait_quietly<T>(
    inner: &Inner,
    client: &Arc<PostgresClient>,
    claim: &Claim,
    lock: Lock,
    mut other: impl Future<Output = T> + Unpin,
) -> Option<Result<Either<T, FreshGrant>, Failure>> {
    let clock = claim.runtime.clock();
    let mut waiter = client.quiet.enter(lock.keys, &client.runtime);
    loop {
        // It runs to its end, also when the claim gives up meanwhile: a grant that nobody takes is released.
        match waiter.attempt(client, claim, lock).await {
            Ok(None) => {}
            Ok(Some(grant)) => return Some(Ok(Either::Right(grant))),
            Err(failure) => return Some(Err(failure)),
        }
        inner.slot.tell(|slot| slot.queued = true);
        let woken = Arc::clone(&waiter.woken);
        let (woken, paused) = (pin!(woken.notified()), pin!(clock.sleep_until(clock.now() + waiter.pause())));
        match select(select(&mut other, select(woken, paused)), pin!(inner.cancelled.notified())).await {
            Either::Left((Either::Left((other, _)), _)) => return Some(Ok(Either::Left(other))),
            Either::Left((Either::Right(_), _)) => {}
            Either::Right(_) => return None,
        }
    }
}
