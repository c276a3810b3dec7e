//! Requests that their callers poll no more.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

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

/// A transaction that has locked the row of a name holds up all who want the lock, until the server ends it after 5 s.
#[tokio::test]
async fn a_request_that_is_not_polled_leaves_no_transaction_open() {
    needs!(POSTGRES);
    let (_server, url) = start().await;
    let (holder, other) = (connect(&url).await, connect(&url).await);
    let guard = holder.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let tried = other.mutex("lock").expect("a good name");
    for most in 1..30 {
        let client = connect(&url).await;
        let mutex = client.mutex("lock").expect("a good name");
        let mut idle = pin!(mutex.lock().into_future());
        let goes_on = polled(most, idle.as_mut()).await;
        let begin = Instant::now();
        let busy = tried.try_lock().await.expect("busy is no error");
        let took = begin.elapsed();
        assert!(busy.is_none() && took < Duration::from_secs(4), "after {most} polls it took {took:?}");
        if !goes_on {
            break;
        }
    }
    guard.release().await.expect("it was held");
}
