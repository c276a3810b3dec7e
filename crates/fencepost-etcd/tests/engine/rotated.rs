//! Certificates that change while a lock is held and waited for.

use fencepost_testkit::etcd::{Config, Etcd};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::server::ClientFiles;

use crate::kit::{SOON, connect, stand};
use std::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_read_again() {
    needs!(ETCD, ETCDCTL, OPENSSL);
    let mut etcd = Etcd::start(&Config::new().tls().client_certificates()).unwrap();
    let files = ClientFiles::of(&etcd.certificate()).unwrap();
    let url = format!("{}?{}", etcd.url(), files.options());
    let (one, two) = (connect(&url).await, connect(&url).await);
    let mut guard = one.mutex("stock").unwrap().lock().ttl(SOON).await.unwrap();
    let waiting = stand(&two, "stock", 2).await;

    etcd.kill().unwrap();
    etcd.rotate().unwrap();
    files.halve().unwrap();
    etcd.restart().unwrap();
    let error = one.mutex("other").unwrap().try_lock().await.expect_err("the certificates are the old ones");
    assert!(error.to_string().contains("cert.pem"), "{error}");

    files.replace(&etcd.certificate()).unwrap();
    // A renewal at once.
    let start = Instant::now();
    while let Err(error) = guard.extend(SOON).await {
        assert!(start.elapsed() < SOON, "{error}");
    }
    guard.release().await.unwrap();
    waiting.granted().await.release().await.unwrap();
}
