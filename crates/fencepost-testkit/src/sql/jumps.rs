//! Locks that are held while the server's wall clock steps.

use crate::faults::Faults;
use crate::wait::eventually;
use fencepost_core::{Client, Token};
use std::time::{Duration, Instant};

/// The time limit for an event that comes at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// The length of the lease.
const TTL: Duration = Duration::from_secs(2);

/// Holds a lock through steps of the server's wall clock in both directions, each for two leases. Returns how many grants were lost,
/// each of which its holder was told. A step whose grant is lost is made up to `tries` times, because a machine that stalls ends the lease, too.
///
/// # Panics
/// Panics if a holder is not told that its lock is another client's, or if a token does not grow.
pub async fn hold_through_jumps(
    client: &Client,
    other: &Client,
    server: &mut impl Faults,
    tries: usize,
) -> usize {
    let (mut last, mut lost) = (Token::default(), 0);
    for hours in [0, 3, -5, 1] {
        let mut keeps_it = false;
        for _ in 0..tries {
            keeps_it = hold_through_jump(client, other, server, hours, &mut last).await;
            if keeps_it {
                break;
            }
        }
        lost += usize::from(!keeps_it);
    }
    lost
}

/// Returns whether the grant lasts.
async fn hold_through_jump(
    client: &Client,
    other: &Client,
    server: &mut impl Faults,
    hours: i64,
    last: &mut Token,
) -> bool {
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(TTL).wait(Duration::from_secs(20)).await.expect("it is free");
    assert!(guard.token() > *last, "{} after {last}", guard.token());
    *last = guard.token();
    server.jump(hours * 3_600).expect("the clock can jump");
    let (past, mutex) = (Instant::now() + 2 * TTL, other.mutex("lock").expect("a good name"));
    while Instant::now() < past {
        if let Some(next) = mutex.try_lock().await.expect("busy is no error") {
            // A lock of a connection is free when the server ends the connection, and its holder is told at the same moment.
            eventually(SOON, "the holder is told", || async { guard.ensure_held().is_err() }).await;
            assert!(next.token() > *last, "{} after {last}", next.token());
            *last = next.token();
            next.release().await.expect("it was held");
        }
        tokio::time::sleep(TTL / 20).await;
    }
    guard.release().await.is_ok()
}
