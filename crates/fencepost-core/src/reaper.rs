//! Cleanup of entries that nobody waits for any more.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::aid::Host;
use crate::backend::{Entry, Left, Reply};
use crate::claim::Claim;
use crate::error::Result;
use crate::time::{Clock, Moment};

/// How an entry is parted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parting {
    /// It may wait or hold: nothing is to be left.
    Withdraw,
    /// Its work was done.
    Release,
}

/// Withdraws or releases entries that were dropped, on the client's own thread: never on the caller's runtime, which may be
/// gone, and never under the caller's cancellation.
///
/// The first poll happens at once, in the caller's `drop`, so that the request is on its way. Cleanup then goes on until
/// the engine confirms it, and ends with the claim's lease at the latest: after that nothing of it is left anyway.
#[derive(Clone)]
pub struct Reaper(Arc<Inner>);

struct Inner {
    clock: Clock,
    host: Arc<dyn Host>,
    pending: AtomicUsize,
    idle: Mutex<Vec<Waker>>,
}

impl Reaper {
    pub(crate) fn new(clock: Clock, host: Arc<dyn Host>) -> Reaper {
        Reaper(Arc::new(Inner { clock, host, pending: AtomicUsize::new(0), idle: Mutex::default() }))
    }

    /// Takes over an entry.
    pub fn take(&self, mut entry: Box<dyn Entry>, claim: &Claim, how: Parting) {
        // Engines that answer on the spot are done here, without a task.
        if let Reply::Ready(Some(Ok(_))) = part(&mut *entry, how) {
            return;
        }
        let clock = self.0.clock.clone();
        // A request sent before now can have made a lease that ends `ttl` from now.
        let until = clock.now() + claim.ttl().max(Duration::from_secs(5)) + Duration::from_secs(1);
        let pending = self.pending();
        let mut job = Box::pin(async move {
            reap(entry, how, &clock, until).await;
            drop(pending);
        });
        if job.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.0.host.spawn(job);
        }
    }

    /// How many entries are being cleaned up.
    pub fn backlog(&self) -> usize {
        self.0.pending.load(Ordering::SeqCst)
    }

    /// Completes when nothing is left to clean up.
    ///
    /// # Cancel safety
    /// Safe; cleanup goes on.
    pub async fn idle(&self) {
        poll_fn(|cx| {
            let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if self.backlog() == 0 {
                return Poll::Ready(());
            }
            idle.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn pending(&self) -> Pending {
        self.0.pending.fetch_add(1, Ordering::SeqCst);
        Pending(Arc::clone(&self.0))
    }
}

/// One entry being cleaned up; counted out when dropped, be it that its host stopped.
struct Pending(Arc<Inner>);

impl Drop for Pending {
    fn drop(&mut self) {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.pending.fetch_sub(1, Ordering::SeqCst) == 1 {
            let wakers = std::mem::take(&mut *idle);
            drop(idle);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

async fn reap(mut entry: Box<dyn Entry>, how: Parting, clock: &Clock, until: Moment) {
    let mut pause = Duration::from_millis(10);
    loop {
        // If this future is dropped here, its host has stopped: the lease is what ends the claim then.
        match clock.within(until, part(&mut *entry, how)).await {
            Some(Ok(_)) => return,
            None => break,
            Some(Err(error)) => tracing::debug!(%error, "cleanup failed, trying again"),
        }
        if clock.now() >= until {
            break;
        }
        clock.sleep_until(clock.now() + pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
    tracing::warn!("cleanup was not confirmed before the lease's end; the engine ends it with the lease");
}

fn part(entry: &mut dyn Entry, how: Parting) -> Reply<'_, Result<Left>> {
    match how {
        Parting::Withdraw => entry.withdraw(),
        Parting::Release => entry.release(),
    }
}
