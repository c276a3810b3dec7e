//! How many connections locks need.

use super::{Sql, Stage};
use crate::client::{connect, threads};
use crate::figure::Measured;
use std::time::Duration;

/// Counts the connections of a process that holds so many locks.
pub(super) fn held<S: Sql>(stage: &Stage<S>, count: usize) -> Measured {
    let runtime = threads();
    runtime.block_on(async {
        let client = connect(&stage.url()).await;
        let mut held = Vec::with_capacity(count);
        for name in 0..count {
            let lock = client.mutex(&format!("held/{name}")).expect("a good name");
            held.push(lock.lock().ttl(Duration::from_secs(6)).await.expect("nobody else wants it"));
        }
        // Longer than their lease: they are renewed.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let (connections, there) = (stage.connections(), stage.locks());
        let lost = held.iter().filter(|guard| guard.ensure_held().is_err()).count();
        drop(held);
        client.close().await;
        let left = stage.locks();
        let sound = there == count && lost == 0 && left == 0;
        let note =
            format!("{there} locks at the server after 10 s, {lost} lost, {left} left after the release");
        Measured { figure: if sound { connections as f64 } else { f64::NAN }, note }
    })
}

/// Counts the connections of a process with so many waiters, each for a name of its own, all of which are granted in the end.
pub(super) fn waiting<S: Sql>(stage: &Stage<S>, count: usize) -> Measured {
    let runtime = threads();
    runtime.block_on(async {
        let (holder, client) = (connect(&stage.url()).await, connect(&stage.url()).await);
        let before = stage.connections();
        let mut held = Vec::with_capacity(count);
        let mut waiting = Vec::with_capacity(count);
        for number in 0..count {
            let name = format!("wanted/{number}");
            let lock = holder.mutex(&name).expect("a good name");
            held.push(lock.lock().await.expect("nobody else wants it"));
            let lock = client.mutex(&name).expect("a good name");
            waiting.push(tokio::spawn(async move {
                let guard = lock.lock().wait(Duration::from_secs(60)).await?;
                guard.release().await
            }));
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        // The holder's own one is counted before.
        let connections = stage.connections() - (before - 1);
        for guard in held {
            guard.release().await.expect("it is held");
        }
        let mut failed = 0;
        for task in waiting {
            failed += usize::from(task.await.expect("a task that does not panic").is_err());
        }
        holder.close().await;
        client.close().await;
        let left = stage.locks();
        let note = format!("{count} waiters for a name each, {failed} not granted, {left} locks left");
        Measured { figure: if failed + left == 0 { connections as f64 } else { f64::NAN }, note }
    })
}
