//! Certificates that change while a lock is held.

use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Masters};
use fencepost_testkit::server::ClientFiles;
use fencepost_testkit::wait::eventually;

use crate::{WAIT, client, cycle, vouch};

/// Has all masters use the certificate of the first one.
fn share(masters: &Masters) {
    let (cert, key) = (masters.nodes()[0].certificate(), masters.nodes()[0].key());
    let (cert, key) = (cert.to_str().expect("a path"), key.to_str().expect("a path"));
    let files = ["tls-cert-file", cert, "tls-key-file", key, "tls-ca-cert-file", cert];
    for node in masters.nodes() {
        node.look().ask::<()>(&[&["CONFIG", "SET"], &files[..]].concat());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_read_again() {
    needs!(REDIS, OPENSSL);
    let masters = Masters::start(3, &Config::new().mutual_tls()).expect("servers start");
    share(&masters);
    let first = &masters.nodes()[0];
    let files = ClientFiles::of(&first.certificate()).expect("copied");
    let url = format!("{}?{}", masters.url(), files.options());
    vouch(&url).await;
    let locks = client(&url).await;
    let guard = locks.mutex("held").unwrap().lock().ttl(Duration::from_secs(9)).await.expect("it is free");

    first.rotate().expect("made");
    share(&masters);
    files.replace(&first.certificate()).expect("copied");
    for node in masters.nodes() {
        assert!(node.look().ask::<u32>(&["CLIENT", "KILL", "USER", "default"]) > 0);
    }
    let before = guard.valid_until();
    eventually(WAIT, "it is renewed", async || guard.valid_until() > before).await;
    guard.release().await.expect("it was held");
    cycle(&locks).await;
    locks.close().await;
}
