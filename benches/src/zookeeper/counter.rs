//! The counter of a folder's nodes, near its end.

use super::server::start;
use crate::client::{connect, runtime};
use crate::figure::Measured;
use fencepost::Locks;
use std::time::Duration;
use zookeeper_client::{Acls, Client, CreateMode};

/// No claim is made from this number on.
const LAST: i32 = i32::MAX - (1 << 20) + 1;
/// Claims that are still made before that.
const BEFORE: usize = 1_000;
/// Claims that are tried where all nodes tie.
const TIED: usize = 2_000;

/// How many are granted that should not be, and how many are refused that should be granted.
pub(crate) fn near_its_end() -> Measured {
    let mut server = start();
    let runtime = runtime();
    runtime.block_on(async {
        let bare = Client::connect(&server.address().to_string()).await.expect("a server that answers");
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        bare.mkdir("/count/lock/kept", &options).await.expect("it is made");
    });
    server.set_counts(&[("/count/lock", LAST - BEFORE as i32)]).expect("it is set");
    let url = format!("{}/count", server.url());
    let (before, behind) = runtime.block_on(async {
        let locks = connect(&url).await;
        let before = granted(&locks, BEFORE).await;
        let behind = granted(&locks, 100).await;
        locks.close().await;
        (before, behind)
    });
    server.set_counts(&[("/count/lock", i32::MAX)]).expect("it is set");
    let tied = runtime.block_on(async {
        let clients = [connect(&url).await, connect(&url).await];
        let [one, two] = clients.each_ref().map(|locks| granted(locks, TIED / 2));
        let (one, two) = tokio::join!(one, two);
        for locks in clients {
            locks.close().await;
        }
        one + two
    });
    let wrong = BEFORE - before + behind + tied;
    let note = format!(
        "{before} of {BEFORE} claims granted before the number 2^31 - 2^20, {behind} of 100 from there on, {tied} of {TIED} where all tie"
    );
    Measured { figure: wrong as f64, note }
}

async fn granted(locks: &Locks, claims: usize) -> usize {
    let lock = locks.mutex("lock").expect("a good name");
    let mut granted = 0;
    for _ in 0..claims {
        let guard = lock.lock().wait(Duration::from_secs(10)).await;
        match guard {
            Ok(guard) => {
                granted += 1;
                guard.release().await.expect("it is held");
            }
            Err(error) => assert!(error.is_configuration(), "{error}"),
        }
    }
    granted
}
