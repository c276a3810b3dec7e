//! Certificates that change while a lock is held.

use fencepost_core::State;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::server::ClientFiles;
use fencepost_testkit::zookeeper::{Config, ZooKeeper};

use crate::kit::{SOON, client, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_read_again() {
    needs!(ZOOKEEPER, OPENSSL);
    let mut server = ZooKeeper::start(&Config::new().mutual_tls()).expect("a server starts");
    let files = ClientFiles::of(&server.certificate()).expect("copied");
    let locks = client(&format!("{}/rotated?session=50s&timeout=2s&{}", server.url(), files.options())).await;
    let mutex = locks.mutex("lock").expect("a good name");
    let guard = mutex.lock().await.expect("it is free");

    server.kill().expect("it runs");
    eventually("the guard is suspect", || guard.state() == State::Suspect).await;
    server.rotate().expect("made");
    files.halve().expect("written");
    server.restart().expect("it starts");
    let request = locks.inspect("lock").await;
    request.expect_err("the certificates are the old ones");
    assert_eq!(guard.state(), State::Suspect);

    files.replace(&server.certificate()).expect("copied");
    eventually("the guard is held again", || guard.state() == State::Held).await;
    guard.release().await.expect("it was held all the time");
    mutex.lock().wait(SOON).await.expect("it is free").release().await.expect("it was held");
}
