//! A server whose connections are all taken.

use super::{Sql, Stage};
use crate::client::threads;
use crate::figure::Measured;
use fencepost::Locks;
use std::time::{Duration, Instant};

/// Holders, each with a client of its own.
const HOLDERS: usize = 100;
/// How long no connection is free. Without renewals a lease of the default length ends before.
const FULL: Duration = Duration::from_secs(30);
/// The lease of every second holder. The others have the default, 30 s.
const SHORT: Duration = Duration::from_secs(6);
/// How often another program asks for a connection that may have become free.
const PAUSE: Duration = Duration::from_millis(20);

/// How many holders lose their locks while other programs take every free connection, from right after the last grant.
pub(super) fn lost<S: Sql>(stage: &Stage<S>) -> Measured {
    let (url, bare) = (stage.url(), stage.bare_url());
    let runtime = threads();
    runtime.block_on(async {
        let mut holders = Vec::new();
        for number in 0..HOLDERS {
            let builder = Locks::builder(&url);
            let builder = if number % 2 == 0 { builder.ttl(SHORT) } else { builder };
            let locks = builder.connect().await.expect("a server that answers");
            let lock = locks.mutex(&format!("lock/{number}")).expect("a good name");
            holders.push((lock.lock().await.expect("nobody else wants it"), locks));
        }
        let mut strangers = Vec::new();
        while let Some(stranger) = S::stranger(&bare).await {
            strangers.push(stranger);
        }
        let (start, mut refused) = (Instant::now(), 0);
        while start.elapsed() < FULL {
            match S::stranger(&bare).await {
                Some(stranger) => strangers.push(stranger),
                None => refused += 1,
            }
            tokio::time::sleep(PAUSE).await;
        }
        let lost = holders.iter().filter(|(guard, _)| guard.ensure_held().is_err()).count();
        let taken = strangers.len();
        drop(strangers);
        for (guard, locks) in holders {
            // It may return that the lock was lost.
            let _ = guard.release().await;
            locks.close().await;
        }
        let note =
            format!("{HOLDERS} clients; {taken} connections of others, {refused} more refused in {FULL:?}");
        Measured { figure: lost as f64, note }
    })
}
