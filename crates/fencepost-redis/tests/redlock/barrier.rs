//! A barrier while a node is away.

use std::time::Duration;

use fencepost_recipes::Barrier;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Masters};
use fencepost_testkit::wait::eventually;

use super::{WAIT, client, vouch};

/// Two of three nodes vote for the second member. With two permits it is inside by the votes of all three alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_stays_closed_while_a_member_still_asks() {
    needs!(REDIS);
    let mut masters = Masters::start(3, &Config::new()).expect("servers start");
    let url = masters.url();
    vouch(&url).await;
    let (one, two) = (client(&url).await, client(&url).await);
    let barrier =
        |locks| Barrier::new(locks, "batch", 2).expect("a good name").every(Duration::from_millis(5));
    let second = barrier(&two);
    let inside = loop {
        let first = barrier(&one);
        let inside = tokio::spawn(async move { first.enter(Duration::from_secs(4)).await.map(drop) });
        eventually(WAIT, "the first member is inside", async || {
            let is_inside =
                async || one.inspect("batch#barrier0").await.is_ok_and(|info| info.holders().count() == 1);
            inside.is_finished() || is_inside().await
        })
        .await;
        // On a busy machine its time may have passed.
        if !inside.is_finished() {
            break inside;
        }
    };
    masters.node(2).stop().expect("it can be stopped");
    let asking = second.enter(Duration::from_secs(2)).await.map(drop);
    let error = asking.expect_err("the third node has not voted for it");
    assert!(error.is_timeout() || error.is_unreachable(), "{error}");
    let error = inside.await.expect("no panic").expect_err("the second member was never inside");
    assert!(error.is_timeout() || error.is_unreachable(), "{error}");
    masters.node(2).cont().expect("it goes on");
    // With all nodes there, the same generation opens.
    let (first, second) = (barrier(&one), barrier(&two));
    let (first, second) = tokio::join!(first.enter(WAIT), second.enter(WAIT));
    let (first, second) = (first.expect("all are here"), second.expect("all are here"));
    let (first, second) = tokio::join!(first.leave(WAIT), second.leave(WAIT));
    first.and(second).expect("both leave");
    one.close().await;
    two.close().await;
}
