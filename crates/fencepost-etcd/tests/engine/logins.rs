//! Users and roles that change while locks are held.

use crate::kit::{SOON, client_of, connect, renewed, stand, users};
use fencepost_core::Clock;
use fencepost_testkit::etcd::{Config, Etcd};
use fencepost_testkit::needs;
use fencepost_testkit::server::TempDir;

/// Two kinds of tokens: simple ones stay valid after a change of users, JWT tokens do not.
fn kinds() -> [Config; 2] {
    [Config::new(), Config::new().jwt()]
}

/// A server with users, and the URL of one of them.
fn start(config: &Config) -> (Etcd, String) {
    // The server hashes the password at each login. At the default cost that takes most of a short lease on a busy machine.
    let etcd = Etcd::start(&config.clone().argument("--bcrypt-cost=4")).unwrap();
    users(&etcd);
    let url = format!("etcd://app:hunter2@{}?prefix=locks/", etcd.address());
    (etcd, url)
}

fn logins(etcd: &Etcd) -> u64 {
    etcd.requests().unwrap().get("Authenticate").copied().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_users_ends_no_lock_and_no_wait() {
    needs!(ETCD, ETCDCTL);
    for config in kinds() {
        let (etcd, url) = start(&config);
        let clock = Clock::manual();
        let (one, two) = (client_of(&clock, &url).await, connect(&url).await);
        let guard = one.mutex("stock").unwrap().lock().ttl(SOON * 2).await.unwrap();
        let waiting = stand(&two, "stock", 2).await;
        let root = etcd.look().of("root:topsecret");
        for user in 0..2 {
            root.run(&["user", "add", &format!("user{user}:secret")]);
            for _ in 0..3 {
                renewed(&clock, &guard).await;
            }
        }
        assert!(!waiting.is_answered());
        guard.release().await.unwrap();
        waiting.granted().await.release().await.unwrap();
        one.close().await;
        two.close().await;
        assert!(root.keys("locks/").is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_logs_in_once_for_a_change_whatever_it_asks_for() {
    needs!(ETCD, ETCDCTL);
    for config in kinds() {
        let (etcd, url) = start(&config);
        let locks = connect(&url).await;
        let root = etcd.look().of("root:topsecret");
        for _ in 0..3 {
            // The server forgets all tokens of a deleted user.
            for command in [&["delete", "app"][..], &["add", "app:hunter2"], &["grant-role", "app", "locks"]]
            {
                root.run(&[&["user"], command].concat());
            }
            let before = logins(&etcd);
            let asked = (0..100).map(|number| {
                let mutex = locks.mutex(&format!("many/{number}")).unwrap();
                tokio::spawn(async move { mutex.lock().await.unwrap().release().await })
            });
            for asked in asked.collect::<Vec<_>>() {
                asked.await.unwrap().unwrap();
            }
            assert_eq!(logins(&etcd) - before, 1);
        }
        locks.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_password_ends_no_lock_and_no_wait() {
    needs!(ETCD, ETCDCTL);
    for config in kinds() {
        let (etcd, _) = start(&config);
        let folder = TempDir::new("rotated").unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "hunter2\n").unwrap();
        let url = format!("etcd://app@{}?prefix=locks/&password_file={}", etcd.address(), file.display());
        let clock = Clock::manual();
        let (one, two) = (client_of(&clock, &url).await, connect(&url).await);
        let guard = one.mutex("stock").unwrap().lock().ttl(2 * SOON).await.unwrap();
        let waiting = stand(&two, "stock", 2).await;

        std::fs::write(&file, "hunter3\n").unwrap();
        let root = etcd.look().of("root:topsecret");
        // The server forgets all tokens of a deleted user.
        for command in [&["delete", "app"][..], &["add", "app:hunter3"], &["grant-role", "app", "locks"]] {
            root.run(&[&["user"], command].concat());
        }
        renewed(&clock, &guard).await;
        guard.release().await.unwrap();
        waiting.granted().await.release().await.unwrap();
    }
}
