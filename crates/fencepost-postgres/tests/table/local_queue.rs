//! Claims that wait in the process, because enough others of the process wait in the table.

use std::future::IntoFuture;
use std::pin::pin;

use fencepost_testkit::needs;
use fencepost_testkit::wait::eventually;
use futures_util::future::poll_immediate;

use crate::{SOON, connect, number, start};

/// How many claims of a process wait in the table for one name.
const QUEUED: i64 = 64;

/// An unfair claim that has waited in the process passes nobody in the table, because claims of other processes may have queued there after
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unfair_claim_that_has_waited_in_the_process_is_a_fair_one() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let client = connect(&url).await;
    let lock = client.rwlock("lock").expect("a good name");
    let first = lock.read().await.expect("it is free");
    let waits = async |count| {
        let waits = "SELECT count(*) FROM fencepost_lock_queue WHERE token = 0";
        eventually(SOON, "they wait", || async { number(&server, waits) == count }).await;
    };
    let mut writers = Vec::new();
    for _ in 0..QUEUED {
        let lock = lock.clone();
        writers.push(tokio::spawn(async move { lock.write().await.map(drop) }));
    }
    waits(QUEUED).await;
    let mut reader = pin!(lock.read().unfair().into_future());
    assert!(poll_immediate(reader.as_mut()).await.is_none(), "it waits in the process");
    // A place in the table becomes free.
    writers.remove(0).abort();
    waits(QUEUED - 1).await;
    let joins = waits(QUEUED);
    tokio::select! {
        read = reader.as_mut() => panic!("it passed the writers: {read:?}"),
        () = joins => {}
    }
    writers.iter().for_each(|writer| writer.abort());
    let guard =
        tokio::time::timeout(SOON, reader).await.expect("nobody waits before it").expect("readers fit");
    guard.release().await.expect("it was held");
    first.release().await.expect("it was held");
    client.close().await;
}
