//! Statements that take longer than their time limit, or than a lease.

use std::time::{Duration, Instant};

use fencepost_core::Client;
use fencepost_testkit::needs;
use fencepost_testkit::sql::Postgres;
use fencepost_testkit::wait::eventually;

use crate::{BLOCKED, Psql, SOON, await_blocked, await_open, builder, number, registry, start};

/// Connects with a short time limit of a statement, which a busy machine may exceed.
async fn connect(url: &str) -> Client {
    let (url, builder) = (format!("{url}&timeout=1s"), builder().close_timeout(SOON));
    builder.connect_wait(SOON).connect(&registry(), &url).await.expect("it answers")
}

/// Makes each change of a row of a table take longer than a lease of `TTL`.
fn slow_down(server: &Postgres, table: &str) {
    let trigger = format!(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql \
         AS 'BEGIN PERFORM pg_sleep(0.4); RETURN NEW; END'; \
         CREATE TRIGGER slow BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION slow()"
    );
    server.run(&trigger).expect("made");
}

const TTL: Duration = Duration::from_millis(300);

/// A backend that waits for a row does not notice that its client has closed the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_takes_too_long_is_cancelled() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let client = connect(&url).await;
    let mutex = client.mutex("lock").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let mut other = Psql::start(&server);
    other.send("BEGIN; SELECT name FROM fencepost_lock FOR UPDATE;");
    await_open(&server).await;
    let trying = tokio::spawn(async move { mutex.lock().await.map(drop) });
    let blocked = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    eventually(SOON, "the claim waits for the row", || async { number(&server, blocked) > 0 }).await;
    let still = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {}", number(&server, blocked));
    eventually(SOON, "its backend has ended", || async { number(&server, &still) == 0 }).await;
    other.send("COMMIT;");
    other.end();
    let _ = trying.await.expect("no panic");
    client.close().await;
}

/// A transaction that waits for a locked row is repeated for some seconds, and not 21 times for 3 s each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_not_repeated_for_a_minute() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let client = crate::connect(&url).await;
    let semaphore = client.semaphore("lock", 5).expect("a good name");
    semaphore.set_permits(4).await.expect("nobody is in the way");
    let mut other = Psql::start(&server);
    other.send("BEGIN; SELECT name FROM fencepost_lock FOR UPDATE;");
    await_open(&server).await;
    let begin = Instant::now();
    let error = semaphore.set_permits(3).await.expect_err("the row is locked");
    let took = begin.elapsed();
    assert!(error.is_transient() && took < Duration::from_secs(20), "{error}, after {took:?}");
    other.send("COMMIT;");
    other.end();
    semaphore.set_permits(3).await.expect("nobody is in the way");
    client.close().await;
}

/// The row of a session that no new claim joins is deleted, too, when its client is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_client_leaves_no_session_that_was_replaced() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let client = connect(&url).await;
    let guard = client.mutex("first").expect("a good name").lock().await.expect("it is free");
    let mutex = client.mutex("second").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let mut other = Psql::start(&server);
    other.send("BEGIN; SELECT name FROM fencepost_lock WHERE name = 'second' FOR UPDATE;");
    await_open(&server).await;
    // Nobody knows what becomes of the statement, so its session gets no new claims.
    let error = mutex.try_lock().await.expect_err("its row is locked");
    assert!(error.is_unreachable(), "{error}");
    other.send("COMMIT;");
    other.end();
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let sessions = "SELECT count(*) FROM fencepost_lock_session";
    assert!(number(&server, sessions) >= 2, "the second claim has another session");
    client.close().await;
    assert_eq!(number(&server, sessions), 0);
    drop(guard);
}

/// The call tells its user that the ttl is too short. It does not repeat for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_expire_before_their_grants_arrive_are_counted() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let client = connect(&url).await;
    slow_down(&server, "fencepost_lock");
    let mutex = client.mutex("lock").expect("a good name");
    let answer = tokio::time::timeout(SOON, async { mutex.lock().ttl(TTL).no_renewal().await }).await;
    let error = answer.expect("it gives up").expect_err("the lease is too short");
    assert!(error.to_string().contains("ended before its grant arrived, 3 times"), "{error}");
    client.close().await;
}

/// Others count on the lease, whoever has extended it, or taken it up, too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_reply_about_a_detached_lease_releases_nothing() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let client = connect(&url).await;
    let mutex = client.mutex("lock").expect("a good name");
    let lease = mutex.lock().await.expect("it is free").detach().await.expect("it is held");
    slow_down(&server, "fencepost_lock");
    let error = client.extend(&lease, TTL).await.expect_err("the extension has expired before its reply");
    assert!(error.is_lost(), "{error}");
    server.run("DROP TRIGGER slow ON fencepost_lock").expect("dropped");
    assert_eq!(number(&server, "SELECT count(owner) FROM fencepost_lock"), 1, "the lease has not ended");
    client.release(&lease).await.expect("it is held");
    client.close().await;
}

/// The same for a session, which is opened before its claim is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_expire_before_they_are_opened_are_counted() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let client = connect(&url).await;
    slow_down(&server, "fencepost_lock_session");
    let mutex = client.mutex("lock").expect("a good name");
    let answer = tokio::time::timeout(SOON, async { mutex.try_lock().ttl(TTL).await }).await;
    let error = answer.expect("it gives up").expect_err("the lease is too short");
    assert!(error.to_string().contains("longer than a lease of 300ms"), "{error}");
    client.close().await;
}

/// A session whose row is locked by another client delays its own renewal alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_waits_delays_no_other_session() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    // A renewal waits for longer than the other lease.
    let url = format!("{url}&timeout=20s");
    let client = Client::builder().connect(&registry(), &url).await.expect("it answers");
    let (slow, other) =
        (client.mutex("slow").expect("a good name"), client.mutex("other").expect("a good name"));
    let slow = slow.lock().ttl(Duration::from_secs(7)).await.expect("it is free");
    let mut guard = other.lock().ttl(Duration::from_secs(6)).await.expect("it is free");
    let mut locks = Psql::start(&server);
    locks.send(
        "BEGIN; SELECT id FROM fencepost_lock_session \
         WHERE id = (SELECT session FROM fencepost_lock WHERE name = 'slow') FOR UPDATE;",
    );
    await_open(&server).await;
    await_blocked(&server, 1).await;
    // For longer than the lease, which ends if the machine stalls. Then another one begins, once.
    let (mut renewals, mut lost) = (0, 0);
    while renewals < 4 {
        let until = guard.valid_until();
        let is_lost = || guard.ensure_held().is_err();
        eventually(SOON, "it is renewed", || async { guard.valid_until() > until || is_lost() }).await;
        renewals += 1;
        if is_lost() {
            (renewals, lost) = (0, lost + 1);
            assert!(lost < 2, "it is not renewed");
            guard = other.lock().ttl(Duration::from_secs(6)).await.expect("it is free");
        }
    }
    assert_eq!(number(&server, BLOCKED), 1, "the other renewal still waits");
    locks.send("COMMIT;");
    locks.end();
    drop(guard.release().await);
    drop(slow);
    client.close().await;
}
