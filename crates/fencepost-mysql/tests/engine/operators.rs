//! Listing, eviction and the examination of the server.

use std::time::Duration;

use fencepost_core::{Client, Eviction, Loss, Severity, Token};
use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;
use fencepost_testkit::wait::eventually;

use crate::{SOON, await_waiting, connect, locks, registry};

/// An eviction at once ends the session of the holder, with all its locks.
#[tokio::test]
async fn an_eviction_at_once_ends_the_session() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (holder, operator) = (connect(&server.url()).await, connect(&server.url()).await);
    let one = holder.mutex("one").expect("a good name").lock().await.expect("it is free");
    let two = holder.mutex("two").expect("a good name").lock().await.expect("it is free");
    operator.evict("one", one.token(), &Eviction::new(true)).await.expect("it is held");
    for guard in [&one, &two] {
        let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
        assert_eq!(lost, Loss::SessionEnded);
    }
    // The holders may be told before the server has freed the locks.
    eventually(SOON, "the locks are free", || async { locks(&server) == "0" }).await;
    holder.close().await;
    operator.close().await;
}

/// Claims that wait for their turns ask every 3 s whether the server answers, on the connection that holds. That tells nobody of an eviction.
#[tokio::test]
async fn the_holder_of_a_fixed_lease_is_evicted_beside_claims_that_wait_for_their_turns() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let fixed = client.mutex("fixed").expect("a good name");
    let fixed = fixed.lock().no_renewal().await.expect("it is free");
    let held = other.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let waiting = [(); 2].map(|()| {
        let mutex = client.mutex("lock").expect("a good name");
        tokio::spawn(async move { mutex.lock().await.map(drop) })
    });
    await_waiting(&server, 1).await;
    other.evict("fixed", fixed.token(), &Eviction::new(false)).await.expect("it is held");
    let lost = tokio::time::timeout(SOON, fixed.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Evicted);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    held.release().await.expect("it was held");
    drop(fixed);
    client.close().await;
    other.close().await;
}

/// A lock that was taken by hand is shown, and cannot be evicted by a token of an earlier grant.
#[tokio::test]
async fn a_lock_that_is_held_by_hand_is_shown() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let client = connect(&server.url()).await;
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().await.expect("it is free");
    let token = guard.token();
    let port = server.address().port().to_string();
    let mut by_hand = tokio::process::Command::new("mariadb")
        .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root", "--port", &port])
        .args(["--execute", "SELECT GET_LOCK('fencepost:lock', 60); SELECT SLEEP(60)"])
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the client of the server starts");
    await_waiting(&server, 1).await;
    guard.release().await.expect("it was held");
    await_waiting(&server, 0).await;
    let info = client.inspect("lock").await.expect("the engine can look");
    let held: Vec<_> = info.holders().collect();
    assert!(held.len() == 1 && held[0].holder.label.starts_with("session "), "{info:?}");
    assert_eq!(held[0].token, Some(Token::default()));
    let error = client.evict("lock", token, &Eviction::new(true)).await.expect_err("it was released");
    assert!(error.is_mismatch(), "{error}");
    by_hand.kill().await.expect("it can be killed");
    client.close().await;
}

/// Waiters are shown with their reasons, also under names that need quotes.
#[tokio::test]
async fn waiters_are_shown_with_their_reasons() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (holder, client) = (connect(&server.url()).await, connect(&server.url()).await);
    for name in ["lock", "it's \\ */ \"one\""] {
        let guard = holder.mutex(name).expect("a good name").lock().await.expect("it is free");
        let mutex = client.mutex(name).expect("a good name");
        let waiting = tokio::spawn(async move { mutex.lock().reason("*/ it's nightly").await.map(drop) });
        await_waiting(&server, 1).await;
        let info = holder.inspect(name).await.expect("the engine can look");
        let reasons: Vec<_> = info.waiters().map(|claim| claim.reason.as_deref()).collect();
        assert_eq!(reasons, [Some("*/ it's nightly")], "{info:?}");
        waiting.abort();
        await_waiting(&server, 0).await;
        guard.release().await.expect("it was held");
    }
    holder.close().await;
    client.close().await;
}

/// The examination reports settings that let a crash lose tokens.
#[tokio::test]
async fn an_examination_finds_weak_settings() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let client = connect(&server.url()).await;
    let found = async |subject: &str| {
        let report = client.examine().await.expect("it answers");
        let finding = report.findings.into_iter().find(|finding| finding.subject == subject);
        finding.expect("it is examined")
    };
    for subject in ["version", "tokens", "durability", "connections", "clocks"] {
        assert_eq!(found(subject).await.severity, Severity::Ok, "{subject}");
    }
    server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 2").expect("set");
    assert_eq!(found("durability").await.severity, Severity::Warning);
    client.close().await;
}

/// A holder reads its eviction with a ping, and keeps the lock until its lease has expired.
#[tokio::test]
async fn an_evicted_holder_keeps_its_lock_for_its_lease() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (holder, operator) = (connect(&server.url()).await, connect(&server.url()).await);
    let ttl = Duration::from_secs(3);
    // On a machine that stalls the lease may end before all this is seen.
    for tries in (0..4).rev() {
        let guard = holder.mutex("lock").expect("a good name").lock().ttl(ttl).await.expect("it is free");
        let evicted = operator.evict("lock", guard.token(), &Eviction::new(false)).await;
        let info = operator.inspect("lock").await.expect("the engine can look");
        assert!(info.holders().all(|claim| claim.evicted), "{info:?}");
        let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
        let seen = (evicted.is_ok(), lost, locks(&server));
        let mutex = operator.mutex("lock").expect("a good name");
        let next = tokio::time::timeout(SOON, async { mutex.lock().await }).await.expect("it is granted");
        assert!(next.as_ref().is_ok_and(|next| next.token() > guard.token()));
        next.expect("granted").release().await.expect("it was held");
        if seen == (true, Loss::Evicted, "1".to_owned()) {
            break;
        }
        assert!(tries > 0, "{seen:?}");
    }
    holder.close().await;
    operator.close().await;
}

/// Nothing renews a fixed lease, and its holder is told of an eviction all the same.
#[tokio::test]
async fn an_evicted_holder_with_a_fixed_lease_is_told() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (holder, operator) = (connect(&server.url()).await, connect(&server.url()).await);
    let mutex = holder.mutex("lock").expect("a good name");
    // Long enough for a busy machine. A ping comes after a third of it.
    let guard = mutex.lock().ttl(Duration::from_secs(9)).no_renewal().await.expect("it is free");
    operator.evict("lock", guard.token(), &Eviction::new(false)).await.expect("it is held");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!((lost, &*locks(&server)), (Loss::Evicted, "1"));
    guard.release().await.expect_err("it was evicted");
    holder.close().await;
    operator.close().await;
}

#[tokio::test]
async fn old_runs_are_deleted() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    for (options, table) in [("", "fencepost_record"), ("?mode=table", "fencepost_lock_record")] {
        let url = format!("{}{options}", server.url());
        Client::builder().apply_schema(&registry(), &url).await.expect("the administrator may make it");
        let names = || server.run(&format!("SELECT name FROM {table}")).expect("the server answers");
        fencepost_testkit::sql::old_runs_are_deleted(&registry(), &url, names).await;
    }
}

/// The server's administrator sees which program holds a connection.
#[tokio::test]
async fn connections_have_the_name_of_their_client() {
    needs!(MARIADB);
    let server = MariaDb::start_options(&["--performance-schema=ON"]).expect("a server starts");
    let names = "SELECT DISTINCT attr_value FROM performance_schema.session_connect_attrs \
        WHERE attr_name = 'program_name' AND attr_value LIKE 'fencepost%'";
    let url = format!("{}?mode=table", server.url());
    Client::builder().apply_schema(&registry(), &url).await.expect("made");
    for url in [server.url(), url] {
        let builder = Client::builder().label("nightly report");
        let client = builder.connect(&registry(), &url).await.expect("it answers");
        let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
        let shown = server.run(names).expect("the server answers");
        let (id, label) = shown.trim().split_once(' ').expect("the name has two parts");
        assert_eq!((id.len(), label), (26, "nightly report"), "{shown}");
        guard.release().await.expect("it was held");
        client.close().await;
        eventually(SOON, "its connections end", || async {
            server.run(names).expect("the server answers").trim().is_empty()
        })
        .await;
    }
}
