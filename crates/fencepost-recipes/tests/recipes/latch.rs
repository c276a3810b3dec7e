//! A count of a latch, whose call is dropped or fails while the engine is slow.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use fencepost_core::testing::{self, TestClock, TestEngine};
use fencepost_core::{Client, Result};
use fencepost_recipes::Latch;

/// The resource whose permits are the counts of the latch "loaded".
const COUNTS: &str = "loaded#latch0";
const DELAY: Duration = Duration::from_millis(10);

type Counting = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Counts down until the request for the lasting mark is under way.
async fn marking(locks: &Client, clock: &TestClock, engine: &TestEngine) -> (Latch, Counting) {
    engine.slow(COUNTS, DELAY);
    let latch = Latch::new(locks, "loaded", 2).expect("a good name");
    let mut counting: Counting = Box::pin({
        let latch = latch.clone();
        async move { latch.count_down().await }
    });
    for _ in 0..2 {
        assert!(counting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let info = locks.inspect(COUNTS).await.expect("the engine can look");
        if info.holders().count() == 1 {
            return (latch, counting);
        }
        clock.advance(DELAY).await;
    }
    panic!("no place was taken");
}

#[tokio::test]
async fn a_count_that_was_asked_for_is_not_taken_back() {
    let (locks, clock, engine) = testing::client();
    let (latch, counting) = marking(&locks, &clock, &engine).await;
    assert_eq!(latch.remaining().await.expect("the engine can look"), 2, "it has not counted yet");
    drop(counting);
    clock.advance(2 * DELAY).await;
    assert_eq!(latch.remaining().await.expect("the engine can look"), 1, "it goes on in the background");
    clock.advance(Duration::from_secs(60)).await;
    assert_eq!(latch.remaining().await.expect("the engine can look"), 1);
}

#[tokio::test]
async fn a_place_whose_count_fails_is_given_back() {
    let (locks, clock, engine) = testing::client();
    let (latch, counting) = marking(&locks, &clock, &engine).await;
    // Before the mark takes effect the place is lost.
    assert_eq!(engine.lose(COUNTS), 1);
    clock.advance(DELAY).await;
    assert!(counting.await.is_err_and(|error| error.is_lost()));
    assert_eq!(latch.remaining().await.expect("the engine can look"), 2);
    engine.heal(COUNTS);
    latch.count_down().await.expect("places are free");
    latch.count_down().await.expect("places are free");
    assert_eq!(latch.remaining().await.expect("the engine can look"), 0);
}
