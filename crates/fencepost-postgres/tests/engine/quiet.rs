//! Claims that wait for messages.

use std::future::poll_fn;
use std::time::Duration;

use fencepost_core::Page;
use fencepost_testkit::needs;
use fencepost_testkit::sql::Postgres;
use fencepost_testkit::wait::eventually;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, NoTls};

use crate::{SOON, connect, locks};

/// A waiting claim blocks no index build: nothing of it runs at the server.
#[tokio::test]
async fn a_quiet_wait_holds_no_snapshot() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let (holder, client) =
        (connect(&server.url()).await, connect(&format!("{}?wait=quiet", server.url())).await);
    let guard = holder.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let mutex = client.mutex("lock").expect("a good name");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually(SOON, "it waits", || async { locks(&server).trim() == "2" }).await;
    for statement in ["CREATE TABLE t (a int)", "CREATE INDEX CONCURRENTLY ON t (a)", "DROP TABLE t"] {
        server.run(statement).expect("not blocked");
    }
    let info = holder.inspect("lock").await.expect("it answers");
    assert_eq!((info.holders().count(), info.waiters().count()), (1, 1), "{info:?}");
    guard.release().await.expect("it was held");
    let guard =
        tokio::time::timeout(SOON, waiting).await.expect("granted").expect("no panic").expect("granted");
    guard.release().await.expect("it was held");
    client.close().await;
    holder.close().await;
    assert_eq!(locks(&server).trim(), "0");
}

/// A claim that waits for permits is shown to operators of other clients, though the server has no queue for it.
#[tokio::test]
async fn claims_that_wait_for_permits_are_shown() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let (holder, client) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = holder.semaphore("pool", 2).expect("a good name").acquire_many(2).await.expect("free");
    let semaphore = client.semaphore("pool", 2).expect("a good name");
    let waiting = tokio::spawn(async move { semaphore.acquire().reason("nightly").await });
    eventually(SOON, "the waiter is shown", || async {
        let info = holder.inspect("pool").await.expect("it answers");
        let reasons: Vec<_> = info.waiters().map(|claim| claim.reason.as_deref()).collect();
        (info.holders().count(), reasons) == (1, vec![Some("nightly")])
    })
    .await;
    let listing = holder.list("", &Page::default()).await.expect("it answers");
    let listed: Vec<_> = listing.resources.iter().map(|info| info.waiters().count()).collect();
    assert_eq!(listed, [1]);
    guard.release().await.expect("it was held");
    let guard =
        tokio::time::timeout(SOON, waiting).await.expect("granted").expect("no panic").expect("granted");
    guard.release().await.expect("it was held");
    client.close().await;
    holder.close().await;
}

/// Returns the messages of a channel.
async fn listen(server: &Postgres, channel: &str) -> (tokio_postgres::Client, UnboundedReceiver<String>) {
    let (client, mut connection) = tokio_postgres::connect(&server.url(), NoTls).await.expect("it answers");
    let (sender, messages) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(said) = message {
                let _ = sender.send(said.payload().to_owned());
            }
        }
    });
    client.batch_execute(&format!("LISTEN {channel}")).await.expect("it listens");
    (client, messages)
}

/// A message takes a lock of the whole server, so a release sends one only if a claim waits for it.
#[tokio::test]
async fn a_release_sends_a_message_only_if_a_claim_waits_for_it() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let (listener, mut messages) = listen(&server, "fencepost_free").await;
    let (one, two) = (connect(&server.url()).await, connect(&format!("{}?wait=quiet", server.url())).await);
    let mutex = one.mutex("lock").expect("a good name");
    for _ in 0..10 {
        mutex.lock().await.expect("it is free").release().await.expect("it was held");
    }
    listener.execute("NOTIFY fencepost_free, 'end'", &[]).await.expect("sent");
    assert_eq!(messages.recv().await.as_deref(), Some("end"));
    let guard = mutex.lock().await.expect("it is free");
    let waiting = two.mutex("lock").expect("a good name");
    let waiting = tokio::spawn(async move { waiting.lock().await });
    eventually(SOON, "it waits", || async { locks(&server).trim() == "2" }).await;
    guard.release().await.expect("it was held");
    let message = tokio::time::timeout(SOON, messages.recv()).await.expect("sent").expect("it listens");
    message.parse::<i64>().expect("it is the key");
    let guard =
        tokio::time::timeout(SOON, waiting).await.expect("granted").expect("no panic").expect("granted");
    guard.release().await.expect("it was held");
    one.close().await;
    two.close().await;
}

/// Permits that a dead client had are free, and those of others stay.
#[tokio::test]
async fn permits_are_counted_over_clients_and_connections() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let (one, two) = (connect(&server.url()).await, connect(&server.url()).await);
    let pool = |client: &fencepost_core::Client| client.semaphore("pool", 5).expect("a good name");
    let (first, second) = (pool(&one), pool(&two));
    let held = [
        first.acquire_many(2).await.expect("free"),
        first.acquire_many(1).ttl(Duration::from_secs(60)).await.expect("free"),
        second.acquire_many(1).await.expect("free"),
    ];
    assert!(second.try_acquire_many(2).await.expect("busy is no error").is_none());
    let last = second.try_acquire().await.expect("it answers").expect("one is left");
    assert!(first.try_acquire().await.expect("busy is no error").is_none());
    // A claim for several waits until all are there.
    let waiting = tokio::spawn({
        let second = second.clone();
        async move { second.acquire_many(3).await }
    });
    one.close().await;
    let guard =
        tokio::time::timeout(SOON, waiting).await.expect("granted").expect("no panic").expect("granted");
    drop(held);
    guard.release().await.expect("it was held");
    last.release().await.expect("it was held");
    two.close().await;
    assert_eq!(locks(&server).trim(), "0");
    let error = connect(&server.url()).await.semaphore("pool", 5000).expect("a good name").acquire().await;
    assert!(error.expect_err("too many").is_invalid());
}
