//! How many connections locks need.

use super::{locks, number, start};
use crate::client::connect;
use crate::figure::Measured;
use std::time::Duration;
use tokio::runtime::Builder;

/// Connections of clients.
const COUNT: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost_%'";

/// Counts the connections of a process that holds so many locks.
pub(crate) fn held(count: usize) -> Measured {
    let server = start();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = connect(&server.url()).await;
        let mut held = Vec::with_capacity(count);
        for name in 0..count {
            let lock = client.mutex(&format!("held/{name}")).expect("a good name");
            held.push(lock.lock().ttl(Duration::from_secs(6)).await.expect("nobody else wants it"));
        }
        // Longer than their lease: they are renewed.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let (connections, there) = (number(&server, COUNT), locks(&server));
        let lost = held.iter().filter(|guard| guard.ensure_held().is_err()).count();
        drop(held);
        client.close().await;
        let left = locks(&server);
        let sound = there == count && lost == 0 && left == 0;
        let note =
            format!("{there} locks at the server after 10 s, {lost} lost, {left} left after the release");
        Measured { figure: if sound { connections as f64 } else { f64::NAN }, note }
    })
}

/// Counts the connections of a process with so many waiters, each for a name of its own, all of which are granted in the end.
pub(crate) fn waiting(count: usize) -> Measured {
    let server = start();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (holder, client) = (connect(&server.url()).await, connect(&server.url()).await);
        let before = number(&server, COUNT);
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
        let connections = number(&server, COUNT) - (before - 1);
        for guard in held {
            guard.release().await.expect("it is held");
        }
        let mut failed = 0;
        for task in waiting {
            failed += usize::from(task.await.expect("a task that does not panic").is_err());
        }
        holder.close().await;
        client.close().await;
        let left = locks(&server);
        let note = format!("{count} waiters for a name each, {failed} not granted, {left} locks left");
        Measured { figure: if failed + left == 0 { connections as f64 } else { f64::NAN }, note }
    })
}
