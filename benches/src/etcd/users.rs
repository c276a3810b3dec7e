//! Users that change while locks are held: what the clients that log in make of it.

use crate::client::runtime;
use crate::figure::Measured;
use fencepost::Locks;
use fencepost_testkit::etcd::{Config, Etcd};
use std::time::Duration;

const CHANGES: u64 = 50;
/// Locks that a client holds.
const HELD: usize = 100;
/// Requests that each client makes at the same time after a change.
const REQUESTS: usize = 64;

/// Counts locks that are lost, waits and requests that fail, and logins beyond one for each client and change.
pub(crate) fn changes() -> Measured {
    let server = Etcd::start(&Config::new().heartbeat(100).in_memory().jwt())
        .expect("etcd, which `cargo xtask test` installs");
    let look = server.look();
    look.run(&["user", "add", "root:topsecret"]);
    look.run(&["user", "grant-role", "root", "root"]);
    look.run(&["auth", "enable"]);
    let root = look.of("root:topsecret");
    let url = server.url().replace("etcd://", "etcd://root:topsecret@");
    let logins =
        || server.requests().expect("a server that counts").get("Authenticate").copied().unwrap_or(0);
    let (mut failed, mut extra, mut lost) = (0, 0, 0);
    runtime().block_on(async {
        let holder = Locks::connect(&url).await.expect("a server that answers");
        let waiter = Locks::connect(&url).await.expect("a server that answers");
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        for number in 0..HELD {
            let lock = holder.mutex(&format!("held/{number}")).expect("a good name");
            held.push(lock.lock().ttl(Duration::from_secs(3)).await.expect("nobody else wants it"));
            let lock = waiter.mutex(&format!("held/{number}")).expect("a good name");
            waiting.push(tokio::spawn(async move { lock.lock().await }));
        }
        for change in 0..CHANGES {
            root.run(&["user", "add", &format!("user{change}:secret")]);
            let before = logins();
            let asked: Vec<_> = [&holder, &waiter]
                .into_iter()
                .flat_map(|client| (0..REQUESTS).map(move |number| (client.clone(), number)))
                .map(|(client, number)| {
                    tokio::spawn(async move {
                        let lock = client.mutex(&format!("free/{number}")).expect("a good name");
                        lock.lock().await?.release().await
                    })
                })
                .collect();
            for asked in asked {
                failed += usize::from(asked.await.expect("a task that does not panic").is_err());
            }
            // Etcdctl has logged in before.
            extra += logins().saturating_sub(before + 2);
        }
        for guard in held {
            lost += usize::from(guard.release().await.is_err());
        }
        for waiting in waiting {
            let granted = waiting.await.expect("a task that does not panic");
            failed += usize::from(granted.is_err());
        }
        holder.close().await;
        waiter.close().await;
    });
    let note = format!(
        "{CHANGES} users added with JWT tokens; 2 clients, {HELD} locks held and {HELD} waits; {} requests after each change: \
         {lost} locks lost, {failed} requests and waits failed, {extra} logins more than one a client and change",
        2 * REQUESTS
    );
    Measured { figure: (lost + failed) as f64 + extra as f64, note }
}
