//! Callers that hang up while they wait: when they have left the queue.

use super::Copy;
use super::caller::Caller;
use crate::client::{NAME, connect, runtime};
use crate::figure::{Measured, median};
use crate::redis;
use std::time::{Duration, Instant};

/// The longest time in ms from the end of a connection until the queue is empty.
pub(crate) fn callers(count: usize) -> Measured {
    let server = redis::start();
    let service = Copy::start(&server.url());
    runtime().block_on(async {
        let locks = connect(&server.url()).await;
        let held = locks.mutex(NAME).expect("a good name").lock().await.expect("a server that answers");
        let waiting = async |there: usize| {
            while locks.inspect(NAME).await.expect("a server that answers").waiters().count() != there {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let mut times = Vec::with_capacity(count);
        for number in 0..count {
            let mut caller = Caller::connect(service.address).await;
            caller.send("/v1/acquire", &format!("{{\"name\":\"{NAME}\",\"wait\":\"60s\"}}")).await;
            waiting(1).await;
            // One half close the connection, the others reset it.
            if number % 2 == 0 {
                caller.stream.set_zero_linger().expect("a socket");
            }
            let start = Instant::now();
            drop(caller);
            waiting(0).await;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        held.release().await.expect("it is held");
        let worst = times.iter().copied().fold(0.0, f64::max);
        let note = format!("{count} callers, half of them by a reset; median {:.1} ms", median(times));
        Measured { figure: worst, note }
    })
}
