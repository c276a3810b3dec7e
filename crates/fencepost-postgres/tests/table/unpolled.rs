//! Requests that their callers poll no more.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use fencepost_core::Eviction;
use fencepost_testkit::needs;

use crate::{connect, start};

/// Polls `work` when it is woken, at most `most` times, and keeps it. Returns whether it was polled so often.
async fn polled(most: u32, work: impl Future + Unpin) -> bool {
    let (mut work, mut polls) = (work, 0);
    let polling = poll_fn(|cx| {
        polls += 1;
        assert!(std::pin::Pin::new(&mut work).poll(cx).is_pending(), "the lock is held");
        if polls == most { Poll::Ready(()) } else { Poll::Pending }
    });
    tokio::time::timeout(Duration::from_secs(1), polling).await.is_ok()
}

/// How long a claim may take beside a transaction that is not open. A machine that stalls may need longer once, but not each time.
const LIMIT: Duration = Duration::from_secs(4);

/// How often a slow claim is made again.
const TRIES: u32 = 3;

/// A transaction that has locked the row of a name holds up all who want the lock, until the server ends it after 5 s.
#[tokio::test]
async fn a_request_that_is_not_polled_leaves_no_transaction_open() {
    needs!(POSTGRES);
    let (_server, url) = start().await;
    let (holder, other) = (connect(&url).await, connect(&url).await);
    let guard = holder.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let tried = other.mutex("lock").expect("a good name");
    let (mut most, mut slow) = (1, 0);
    while most < 30 {
        let client = connect(&url).await;
        let mutex = client.mutex("lock").expect("a good name");
        let mut idle = pin!(mutex.lock().into_future());
        let goes_on = polled(most, idle.as_mut()).await;
        let begin = Instant::now();
        let busy = tried.try_lock().await.expect("busy is no error");
        let took = begin.elapsed();
        assert!(busy.is_none(), "after {most} polls two hold it");
        if took >= LIMIT {
            slow += 1;
            assert!(slow < TRIES, "after {most} polls it took {took:?}");
            continue;
        }
        if !goes_on {
            break;
        }
        (most, slow) = (most + 1, 0);
    }
    guard.release().await.expect("it was held");
}

/// Polls the work when it is woken, at most `most` times, and keeps it while somebody else tries to get the lock. Returns whether the work
/// is done.
async fn is_out_of_the_way<T>(
    most: u32,
    mut work: impl AsyncFnMut() -> T,
    other: &fencepost_core::RwLock,
) -> bool {
    let mut slow = 0;
    loop {
        let (mut work, mut polls) = (pin!(work()), 0);
        let polling = poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending => {
                polls += 1;
                if polls == most { Poll::Ready(false) } else { Poll::Pending }
            }
        });
        let is_done = tokio::time::timeout(Duration::from_secs(1), polling).await.unwrap_or(true);
        let begin = Instant::now();
        other.try_write().await.expect("busy is no error");
        let took = begin.elapsed();
        if took < LIMIT {
            return is_done;
        }
        slow += 1;
        assert!(slow < TRIES, "after {most} polls it took {took:?}");
    }
}

/// An upgrade, an eviction and a new limit lock the row of the name, too.
#[tokio::test]
async fn no_operation_that_is_not_polled_leaves_a_transaction_open() {
    needs!(POSTGRES);
    let (_server, url) = start().await;
    let (one, two, other) = (connect(&url).await, connect(&url).await, connect(&url).await);
    let lock = other.rwlock("lock").expect("a good name");
    let mut guard = one.rwlock("lock").expect("a good name").read().await.expect("it is free");
    let beside = two.rwlock("lock").expect("a good name").read().await.expect("readers fit");
    for most in 1..30 {
        // Another reader holds, so it waits in the end.
        if is_out_of_the_way(most, async || guard.upgrade().await, &lock).await {
            break;
        }
    }
    let how = Eviction::new(false);
    for most in 1..30 {
        if is_out_of_the_way(most, async || two.evict("lock", beside.token(), &how).await, &lock).await {
            break;
        }
    }
    let semaphore = two.semaphore("lock", 5).expect("a good name");
    for most in 1..30 {
        if is_out_of_the_way(most, async || semaphore.set_permits(3).await, &lock).await {
            break;
        }
    }
    drop((guard, beside));
}
