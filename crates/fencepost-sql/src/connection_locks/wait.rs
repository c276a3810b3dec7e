//! A claim that waits in the server's queue, on a connection of its own.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, Moment, Token, jitter};
use futures_util::FutureExt;
use futures_util::future::{Either, select};

use crate::connection_locks::attempt::{FreshGrant, try_lock};
use crate::connection_locks::connection::Connection;
use crate::connection_locks::connections::Alone;
use crate::connection_locks::turns::WAIT_IDLE;
use crate::connection_locks::waiting::{Waiting, WaitingTask};
use crate::connection_locks::{ConnectionLocks, Server, Session};
use crate::failure::Failure;
use crate::pool::Permit;

type Keys<S> = <<S as Server>::Session as Session>::Keys;

/// How long a claim without a connection to wait on pauses before it tries again: from once to twice this time.
const PAUSE: Duration = Duration::from_millis(250);

/// A claim that waits.
pub(super) type Wait<S> = Waiting<Result<Grant<S>, Failure>>;

type Task<S> = WaitingTask<Result<Grant<S>, Failure>>;

/// A lock that was waited for.
pub(super) enum Grant<S: Server> {
    /// In the server's queue. The connection is the claim's alone.
    Waited {
        alone: Alone<S>,
        token: Token,
        /// When the statement was sent from which the lease counts.
        sent: Moment,
    },
    /// It was free when the claim tried again.
    Fresh(FreshGrant<S>),
    /// The server granted it and took it back, because this process was stopped meanwhile.
    TakenBack,
}

pub(super) fn start<S: Server>(
    locks: &Arc<ConnectionLocks<S>>,
    claim: &Arc<Claim>,
    keys: &Keys<S>,
) -> Wait<S> {
    let (locks, claim, keys) = (Arc::clone(locks), Arc::clone(claim), keys.clone());
    let runtime = locks.runtime.clone();
    Waiting::start(&runtime, move |task| async move { wait(&task, &locks, &claim, &keys).await })
}

/// Waits for the lock. `None`: the claim has given up, and nothing of it is left.
async fn wait<S: Server>(
    task: &Task<S>,
    locks: &Arc<ConnectionLocks<S>>,
    claim: &Claim,
    keys: &Keys<S>,
) -> Option<Result<Grant<S>, Failure>> {
    let own = Arc::clone(locks);
    let reach = move || {
        let own = Arc::clone(&own);
        async move { own.reach().await }.boxed()
    };
    let turn = match task.turn(&locks.turns, claim, reach).await {
        Ok(turn) => turn?,
        Err(failure) => return Some(Err(failure)),
    };
    let permit = match locks.connections.try_permit() {
        Some(permit) => permit,
        None => match try_until_permitted(task, locks, claim, keys).await? {
            Ok(Either::Left(permit)) => permit,
            Ok(Either::Right(grant)) => return Some(Ok(Grant::Fresh(grant))),
            Err(failure) => return Some(Err(failure)),
        },
    };
    let ttl = claim.ttl();
    let idle = ttl.min(WAIT_IDLE);
    let connecting = pin!(locks.connections.alone(permit, idle));
    let mut alone = match select(connecting, pin!(task.cancelled())).await {
        Either::Left((Ok(alone), _)) => alone,
        Either::Left((Err(failure), _)) => return Some(Err(failure)),
        Either::Right((_, connecting)) => {
            // The next claim need not open one. It may wait for the lock meanwhile.
            drop(turn);
            if let Ok(mut alone) = connecting.await {
                alone.set_clean(true);
            }
            return None;
        }
    };
    let connection = Arc::clone(alone.connection());
    let clock = claim.runtime.clock();
    let _turn = turn;
    let token = match wait_in_queue(task, locks, &connection, claim, keys).await {
        Some(Ok(token)) => token,
        Some(Err(failure)) => return Some(Err(failure)),
        None => {
            if !connection.has_ended() {
                alone.set_clean(true);
            }
            return None;
        }
    };
    // The server's idle timeout may have started long before the reply arrived: the lease counts from here.
    let sent = clock.now();
    Some(match connection.confirm(claim, keys, token, ttl).await {
        Ok(token) => Ok(Grant::Waited { alone, token, sent }),
        Err(failure) if failure.closed || connection.has_ended() => Ok(Grant::TakenBack),
        Err(failure) => Err(failure),
    })
}

/// Waits in the server's queue. `None`: the claim has given up, and nothing is locked on the connection.
async fn wait_in_queue<S: Server>(
    task: &Task<S>,
    locks: &Arc<ConnectionLocks<S>>,
    connection: &Connection<S>,
    claim: &Claim,
    keys: &Keys<S>,
) -> Option<Result<Token, Failure>> {
    let mut waiting = pin!(connection.send(|session| session.wait(claim, keys)));
    {
        // This connection has no reply while it waits: another one tells that the claim stands in the queue.
        let noting = pin!(async {
            locks.until_unseen(connection, claim.ttl(), || task.set_queued(true)).await;
            // The statement that waits fails, and the claim asks again.
            connection.end();
            pending::<()>().await
        });
        let waiting = select(waiting.as_mut(), noting);
        match select(waiting, pin!(task.cancelled())).await {
            Either::Left((Either::Left((granted, _)), _)) => return Some(granted),
            Either::Left((Either::Right(_), _)) => unreachable!("it never ends"),
            Either::Right(_) => {}
        }
    }
    connection.cancel(locks, keys, claim.ttl(), waiting).await;
    None
}

/// Waits for the right to a connection. The holders of all connections may be waiting for other locks, so the claim tries meanwhile.
/// `None`: the claim has given up, and nothing of it is left.
async fn try_until_permitted<S: Server>(
    task: &Task<S>,
    locks: &Arc<ConnectionLocks<S>>,
    claim: &Claim,
    keys: &Keys<S>,
) -> Option<Result<Either<Permit, FreshGrant<S>>, Failure>> {
    let clock = claim.runtime.clock();
    let mut permit = pin!(locks.connections.permit());
    loop {
        // It runs to its end, also when the claim gives up meanwhile: a grant that nobody takes is released.
        match try_lock(locks, claim, keys).await {
            Ok(None) => {}
            Ok(Some(grant)) => return Some(Ok(Either::Right(grant))),
            Err(failure) => return Some(Err(failure)),
        }
        task.set_queued(true);
        // Claims that began together do not try together.
        let now = clock.now();
        let paused = pin!(clock.sleep_until(now + jitter(2 * PAUSE, now.as_nanos())));
        match select(select(&mut permit, paused), pin!(task.cancelled())).await {
            Either::Left((Either::Left((permit, _)), _)) => return Some(permit.map(Either::Left)),
            Either::Left((Either::Right(_), _)) => {}
            Either::Right(_) => return None,
        }
    }
}
