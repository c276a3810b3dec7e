//! A password and certificates that change while a lock is held and waited for.

use std::fs;
use std::time::Duration;

use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use fencepost_testkit::server::{ClientFiles, TempDir};
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

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_read_again() {
    needs!(REDIS, OPENSSL);
    let mut server = Redis::start(&Config::new().durable().mutual_tls()).unwrap();
    let files = ClientFiles::of(&server.certificate()).unwrap();
    let url = format!("{}?{}", server.url(), files.options());
    let lease = Duration::from_secs(9);
    let (one, two) = (connect(&url, lease).await, connect(&url, lease).await);
    let guard = lock(&one, "lock").await;
    let waiting = wait(&two, "lock", 1).await;

    server.kill().unwrap();
    server.rotate().unwrap();
    files.halve().unwrap();
    server.restart().unwrap();
    let error = one.mutex("other").unwrap().try_lock().await.expect_err("the certificates are the old ones");
    assert!(error.to_string().contains("cert.pem"), "{error}");

    files.replace(&server.certificate()).unwrap();
    let before = guard.valid_until();
    eventually(LONG, "it is renewed", async || guard.valid_until() > before).await;
    guard.release().await.expect("it was held");
    granted(waiting, LONG).await.release().await.expect("it was held");
}
