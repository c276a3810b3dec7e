//! A password that changes while a lock is held and waited for.

use std::fs;
use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use fencepost_testkit::server::TempDir;
use fencepost_testkit::wait::eventually;

use crate::kit::{LONG, connect, granted, lock, wait};

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_password_ends_no_lock_and_no_wait() {
    needs!(REDIS);
    let server = Redis::start(&Config::new().user("app", "first")).unwrap();
    let folder = TempDir::new("rotated").unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "first\n").unwrap();
    let url = format!("redis://app@{}?password_file={}", server.address(), file.display());
    let lease = Duration::from_secs(9);
    let (one, two) = (connect(&url, lease).await, connect(&url, lease).await);
    let guard = lock(&one, "lock").await;
    let waiting = wait(&two, "lock", 1).await;

    fs::write(&file, "second\n").unwrap();
    server.look().ask::<()>(&["ACL", "SETUSER", "app", "resetpass", ">second"]);
    assert!(server.look().ask::<u32>(&["CLIENT", "KILL", "USER", "app"]) > 0);
    let before = guard.valid_until();
    eventually(LONG, "it is renewed", async || guard.valid_until() > before).await;
    guard.release().await.expect("it was held");
    granted(waiting, LONG).await.release().await.expect("it was held");
}
