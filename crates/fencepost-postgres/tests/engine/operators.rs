//! The claims that operators of other clients see.

use std::time::{Duration, Instant};

use fencepost_core::{Client, Eviction, Loss, Page};
use fencepost_testkit::needs;
use fencepost_testkit::sql::Postgres;
use fencepost_testkit::wait::eventually;

use crate::{SOON, connect, locks, registry};

/// The database's encoding has few characters, and the texts of claims may have any.
#[tokio::test]
async fn claims_are_shown_in_a_database_without_unicode() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    server.run("CREATE DATABASE narrow ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0").expect("made");
    let url = server.url().replace("/postgres", "/narrow");
    let client = Client::builder().label("日本/🦀").connect(&registry(), &url).await.expect("it answers");
    let operator = connect(&url).await;
    let mutex = client.mutex("lock/é/日本").expect("a good name");
    let guard = mutex.lock().reason("\u{1}é日").await.expect("it is free");
    // A holder that stalls does not tell its texts.
    eventually(SOON, "they are shown", || async {
        let info = operator.inspect("lock/é/日本").await.expect("it answers");
        let listing = operator.list("lock/é/日", &Page::default()).await.expect("it answers");
        [info].iter().chain(&listing.resources).all(|info| {
            let holder = info.holders().next().expect("it is held");
            (&*holder.holder.label, holder.reason.as_deref()) == ("日本/🦀", Some("\u{1}é日"))
        }) && listing.resources.len() == 1
    })
    .await;
    guard.release().await.expect("it was held");
    client.close().await;
    operator.close().await;
}

/// Names that nobody has used for 30 days are removed, but not while their locks are held. One that is used again is kept.
#[tokio::test]
async fn idle_names_are_removed() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    Client::builder().apply_schema(&registry(), &server.url()).await.expect("the superuser may make it");
    let run = |statement: &str| server.run(statement).expect("the server answers").trim().to_owned();
    let names = || run("SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM fencepost.name");
    let cycle = async |name: &str| {
        let client = connect(&server.url()).await;
        let lock = client.mutex(name).expect("a good name");
        lock.lock().await.expect("it is free").release().await.expect("it was held");
        client
    };
    let client = connect(&server.url()).await;
    let held = client.mutex("held").expect("a good name").lock().await.expect("it is free");
    let idle = cycle("idle").await;
    let used = cycle("used").await;
    eventually(SOON, "they are written", || async { names() == "held idle used" }).await;
    run("UPDATE fencepost.name SET used = current_date - 31");
    let again = cycle("used").await;
    let today = "SELECT name FROM fencepost.name WHERE used = current_date";
    eventually(SOON, "the idle one is removed", || async { run(today) == "used" && names() == "held used" })
        .await;
    held.release().await.expect("it was held");
    let new = cycle("new").await;
    eventually(SOON, "it is idle now", || async { names() == "new used" }).await;
    for client in [client, idle, used, again, new] {
        client.close().await;
    }
}

#[tokio::test]
async fn old_runs_are_deleted() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    for (options, table) in [("", "fencepost.record"), ("?mode=table", "fencepost_lock_record")] {
        let url = format!("{}{options}", server.url());
        Client::builder().apply_schema(&registry(), &url).await.expect("the superuser may make it");
        let names = || server.run(&format!("SELECT name FROM {table}")).expect("the server answers");
        fencepost_testkit::sql::old_runs_are_deleted(&registry(), &url, names).await;
    }
}

/// The server's administrator sees which program holds a connection. A client that does not reply is shown by that name, too.
#[tokio::test]
async fn connections_have_the_name_of_their_client() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    Client::builder().apply_schema(&registry(), &format!("{}?mode=table", server.url())).await.expect("made");
    for options in ["", "?mode=table"] {
        for (label, shown) in [
            ("nightly report", "nightly report"),
            ("a\tb\u{7f} Zürich", "ab Z?rich"),
            ("root@a-host-with-a-very-long-name.example.com/report", "-a-very-long-name.example.com/report"),
        ] {
            let builder = Client::builder().label(label);
            let url = format!("{}{options}", server.url());
            let client = builder.connect(&registry(), &url).await.expect("it answers");
            let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
            let names = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE application_name LIKE 'fencepost%'";
            let names = server.run(names).expect("the server answers");
            let (id, named) = names.trim().split_once(' ').expect("the name has two parts");
            assert_eq!((id.len(), named), (26, shown), "{options}: {names}");
            guard.release().await.expect("it was held");
            client.close().await;
            let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost%'";
            eventually(SOON, "its connections end", || async {
                server.run(count).expect("the server answers").trim() == "0"
            })
            .await;
        }
    }
}

/// The pings and the releases of a connection that holds queue behind its other statements.
#[tokio::test]
async fn a_table_of_names_that_is_locked_holds_up_no_lock_for_long() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    Client::builder().apply_schema(&registry(), &server.url()).await.expect("the superuser may make it");
    let url = format!("{}?timeout=60s", server.url());
    let client =
        Client::builder().release_timeout(SOON).connect(&registry(), &url).await.expect("it answers");
    let (other, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("it answers");
    tokio::spawn(connection);
    other.batch_execute("BEGIN; LOCK TABLE fencepost.name").await.expect("nobody uses it");
    // The second claim is sent after the statement that writes the name of the first one.
    let [first, second] = ["first", "second"].map(|name| client.mutex(name).expect("a good name"));
    let (first, second) = (first.lock().await.expect("it is free"), second.lock().await.expect("it is free"));
    first.release().await.expect("the name is not written");
    second.release().await.expect("the name is not written");
    drop(other);
    client.close().await;
}

/// The holder was told of the longer lease before it asked for a shorter one.
#[tokio::test]
async fn an_eviction_lasts_until_the_end_of_the_longest_lease() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let (holder, operator) = (connect(&server.url()).await, connect(&server.url()).await);
    let ttl = Duration::from_secs(1);
    let mutex = holder.mutex("lock").expect("a good name");
    let mut guard = mutex.lock().ttl(60 * ttl).no_renewal().await.expect("it is free");
    guard.extend(ttl).await.expect("it is held");
    let mutex = operator.mutex("lock").expect("a good name");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    operator.evict("lock", guard.token(), &Eviction::new(false)).await.expect("it is held");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Evicted);
    let told = Instant::now();
    while told.elapsed() < ttl + ttl / 2 {
        assert!(!waiting.is_finished(), "the next one was granted {:?} after the eviction", told.elapsed());
        tokio::time::sleep(ttl / 20).await;
    }
    drop(guard);
    let next = tokio::time::timeout(SOON, waiting).await.expect("it is free").expect("no panic");
    next.expect("it is free").release().await.expect("it was held");
    holder.close().await;
    operator.close().await;
}

/// An administrator cancels a statement, and hits the one that releases a lock. Other locks of the connection stay.
#[tokio::test]
async fn a_release_that_is_cancelled_is_sent_once_more() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let first_fails = "CREATE SCHEMA app; CREATE SEQUENCE app.calls; \
        CREATE FUNCTION app.pg_advisory_unlock(key int8) RETURNS bool LANGUAGE plpgsql AS 'BEGIN \
        IF nextval(''app.calls'') = 1 THEN RAISE EXCEPTION USING ERRCODE = ''57014'', MESSAGE = ''cancelled''; END IF; \
        RETURN pg_catalog.pg_advisory_unlock(key); END'; \
        ALTER ROLE CURRENT_USER SET search_path = app, pg_catalog";
    server.run(first_fails).expect("made");
    let client = connect(&server.url()).await;
    let other = client.mutex("other").expect("a good name").lock().await.expect("it is free");
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    guard.release().await.expect("the second statement releases it");
    assert_eq!(locks(&server).trim(), "1");
    other.release().await.expect("it was held");
    client.close().await;
}

/// The cancelled release has taken effect. A second one would release the lock of the other reader, which shares the session.
#[tokio::test]
async fn a_release_that_is_cancelled_takes_no_lock_of_another_reader() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let first_fails = "CREATE SCHEMA app; CREATE SEQUENCE app.calls; \
        CREATE FUNCTION app.pg_advisory_unlock_shared(key int8) RETURNS bool LANGUAGE plpgsql AS 'BEGIN \
        PERFORM pg_catalog.pg_advisory_unlock_shared(key); \
        IF nextval(''app.calls'') = 1 THEN RAISE EXCEPTION USING ERRCODE = ''57014'', MESSAGE = ''cancelled''; END IF; \
        RETURN true; END'; \
        ALTER ROLE CURRENT_USER SET search_path = app, pg_catalog";
    server.run(first_fails).expect("made");
    // The client asks for the release again for the time of a lease, and then ends the connection.
    let ttl = Duration::from_secs(10);
    let client = Client::builder().ttl(ttl).connect(&registry(), &server.url()).await.expect("it answers");
    let writer = connect(&server.url()).await;
    let lock = client.rwlock("lock").expect("a good name");
    let first = lock.read().await.expect("it is free");
    let second = lock.read().await.expect("readers share it");
    first.release().await.expect_err("nobody knows whether it was released");
    let mutex = writer.mutex("lock").expect("a good name");
    assert!(mutex.try_lock().await.expect("busy is no error").is_none(), "two hold the lock");
    second.release().await.expect("it was held");
    client.close().await;
    writer.close().await;
}
