//! Thousands of claims of one client for the same name: what others notice.

use super::start;
use crate::client::{NAME, cycle, threads};
use crate::figure::Measured;
use fencepost::{Info, Locks};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The most that may stand in the folder: those that wait, and the one that holds.
const MOST: usize = 65;
/// The lease of the lock that the client holds meanwhile.
const LEASE: Duration = Duration::from_secs(3);

/// The longest cycle of another client, in ms, from the first call to the last grant. No figure if a claim fails, the client loses
/// another lock, or too many stand at the server.
pub(crate) fn claims(count: usize) -> Measured {
    let server = start();
    let runtime = threads();
    let (url, over) = (server.url(), Arc::new(AtomicBool::new(false)));
    // Another client, on a thread of its own: it does not wait for the claims' tasks.
    let (until, at) = (Arc::clone(&over), url.clone());
    let other = std::thread::spawn(move || crate::client::runtime().block_on(beside(&at, &until)));
    let (failed, lost, seconds) = runtime.block_on(async {
        let locks = Locks::connect(&url).await.expect("a server that answers");
        let own = locks.mutex("own").expect("a good name").lock().ttl(LEASE).await.expect("it is free");
        let lock = locks.mutex(NAME).expect("a good name");
        let start = Instant::now();
        let claims: Vec<_> = (0..count)
            .map(|_| {
                let lock = lock.clone();
                tokio::spawn(async move { lock.lock().await?.release().await })
            })
            .collect();
        let mut failed = 0;
        for claim in claims {
            failed += usize::from(claim.await.expect("a task that does not panic").is_err());
        }
        let seconds = start.elapsed().as_secs_f64();
        let lost = usize::from(own.ensure_held().is_err());
        let _ = own.release().await;
        locks.close().await;
        (failed, lost, seconds)
    });
    over.store(true, Ordering::Relaxed);
    let (longest, cycles, most) = other.join().expect("a thread that does not panic");
    let note = format!(
        "{count} claims in {seconds:.1} s: {failed} failed, {lost} other locks of the client lost, at most {most} keys in the \
         folder; {cycles} cycles of another client meanwhile"
    );
    let sound = failed == 0 && lost == 0 && most <= MOST && cycles > 0;
    Measured { figure: if sound { longest * 1e3 } else { f64::NAN }, note }
}

/// The longest cycle in seconds, how many there were, and the most claims that were seen in the folder.
async fn beside(url: &str, over: &AtomicBool) -> (f64, usize, usize) {
    let locks = Locks::connect(url).await.expect("a server that answers");
    let lock = locks.mutex("beside").expect("a good name");
    let (mut longest, mut cycles, mut most) = (0.0_f64, 0, 0);
    while !over.load(Ordering::Relaxed) {
        let start = Instant::now();
        cycle(&lock).await;
        longest = longest.max(start.elapsed().as_secs_f64());
        cycles += 1;
        if cycles % 10 == 0 {
            let info: Info = locks.inspect(NAME).await.expect("a server that answers");
            most = most.max(info.claims.len());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    locks.close().await;
    (longest, cycles, most)
}
