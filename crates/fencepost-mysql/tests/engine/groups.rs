//! Claims of one connection that come at the same time draw their tokens in one statement.

use std::pin::Pin;
use std::process::Stdio;

use fencepost_core::{Client, Guard, HolderInfo, Result};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::sql::ProxiedMariaDb;
use fencepost_testkit::wait::eventually;
use futures_util::future::join_all;
use tokio::process::{Child, Command};

use crate::{SOON, builder, connect, registry};

/// How many claims come at the same time.
const CLAIMS: usize = 64;

type Trying = Pin<Box<dyn Future<Output = Result<Option<Guard>>> + Send>>;

/// A client behind a proxy, which waits longer than a busy machine needs.
async fn start() -> (ProxiedMariaDb, Client) {
    let server = ProxiedMariaDb::start(&()).expect("a server starts");
    let url = format!("{}?timeout=20s", server.url());
    let client = builder().outage(SOON).connect(&registry(), &url).await.expect("it answers");
    (server, client)
}

/// Asks for a lock each. All have asked when this returns. `waits`: claims ask again after an error, as long as an outage may last.
async fn ask(client: &Client, waits: bool) -> Vec<Trying> {
    let mut all: Vec<Trying> = Vec::new();
    for number in 0..CLAIMS {
        let mutex = client.mutex(&format!("lock/{number}")).expect("a good name");
        let mut trying: Trying =
            Box::pin(
                async move { if waits { mutex.lock().await.map(Some) } else { mutex.try_lock().await } },
            );
        assert!(futures_util::poll!(&mut trying).is_pending(), "the server is silent");
        all.push(trying);
    }
    all
}

async fn granted(all: Vec<Trying>) -> Vec<Guard> {
    let all = tokio::time::timeout(SOON, join_all(all)).await.expect("they have replies");
    all.into_iter().map(|one| one.expect("it answers").expect("it is free")).collect()
}

async fn release(guards: Vec<Guard>) {
    for guard in guards {
        guard.release().await.expect("it was held");
    }
}

fn held(server: &ProxiedMariaDb) -> String {
    let count = "SELECT COUNT(*) FROM fencepost_token WHERE IS_USED_LOCK(lock_name) IS NOT NULL";
    server.run(count).expect("the server answers").trim().to_owned()
}

/// Counts the statements that have drawn tokens: each is a commit.
fn draws(server: &ProxiedMariaDb) -> u64 {
    let row = server.run("SHOW GLOBAL STATUS LIKE 'Com_insert_select'").expect("the server answers");
    row.trim().strip_prefix("Com_insert_select\t").and_then(|count| count.parse().ok()).expect("a number")
}

/// Runs statements in a session that lasts until this is dropped.
fn by_hand(server: &ProxiedMariaDb, statements: &str) -> Child {
    let port = server.address().port().to_string();
    Command::new("mariadb")
        .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root", "--port", &port])
        .args(["--database=fencepost", "--execute", &format!("{statements}; SELECT SLEEP(100)")])
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the client of the server starts")
}

/// Returns when a session is in this state.
async fn await_state(server: &ProxiedMariaDb, state: &str) {
    let count = format!("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = '{state}'");
    eventually(SOON, state, || async { server.run(&count).expect("the server answers").trim() == "1" }).await;
}

/// The first claim goes alone, and the others go together while it is under way.
#[tokio::test]
async fn claims_that_come_at_once_draw_their_tokens_together() {
    needs!(MARIADB);
    let (mut server, client) = start().await;
    let mut last = vec![0; CLAIMS];
    for _ in 0..3 {
        let before = draws(&server);
        server.silence().expect("the network can be silent");
        let all = ask(&client, false).await;
        server.mend().expect("it can be mended");
        let guards = granted(all).await;
        assert_eq!(draws(&server) - before, 2, "one for the first claim, and one for all others");
        assert_eq!(held(&server), CLAIMS.to_string());
        for (guard, last) in guards.iter().zip(&mut last) {
            assert!(guard.token().get() > *last, "{} after {last}", guard.token());
            *last = guard.token().get();
        }
        release(guards).await;
        // Each was taken once: one release has freed it.
        assert_eq!(held(&server), "0");
    }
    client.close().await;
}

/// A lock that is held does not keep others from theirs.
#[tokio::test]
async fn claims_that_go_together_have_outcomes_of_their_own() {
    needs!(MARIADB);
    let (mut server, client) = start().await;
    let other = connect(&server.direct_url()).await;
    let exclusive = other.mutex("lock/10").expect("a good name").lock().await.expect("it is free");
    let second = other.mutex("lock/20").expect("a good name").lock().await.expect("it is free");
    server.silence().expect("the network can be silent");
    let mut all = ask(&client, false).await;
    // A claim that leaves harms nobody, and a long reason goes alone.
    drop(all.split_off(CLAIMS - 8));
    let long = client.mutex("long").expect("a good name");
    all.push(Box::pin(async move { long.lock().reason(&"x".repeat(HolderInfo::MAX_BYTES)).await.map(Some) }));
    assert!(futures_util::poll!(all.last_mut().expect("it is there")).is_pending());
    server.mend().expect("it can be mended");
    let all = tokio::time::timeout(SOON, join_all(all)).await.expect("they have replies");
    let mut guards = Vec::new();
    for (number, outcome) in all.into_iter().enumerate() {
        let guard = outcome.expect("busy is no error");
        assert_eq!(guard.is_none(), [10, 20].contains(&number), "lock/{number}");
        guards.extend(guard);
    }
    let (ours, theirs) = (guards.len(), 2);
    eventually(SOON, "what the others took is free", || async {
        held(&server) == (ours + theirs).to_string()
    })
    .await;
    for guard in guards.into_iter().chain([exclusive, second]) {
        guard.release().await.expect("it was held");
    }
    assert_eq!(held(&server), "0");
    client.close().await;
    other.close().await;
}

/// A row that somebody else has locked holds up its claim alone.
#[tokio::test]
async fn a_row_that_is_locked_holds_up_its_claim_alone() {
    needs!(MARIADB);
    let (mut server, client) = start().await;
    let mutex = client.mutex("lock/30").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let mut by_hand = by_hand(
        &server,
        "BEGIN; SELECT * FROM fencepost_token WHERE lock_name = 'fencepost:lock/30' FOR UPDATE",
    );
    await_state(&server, "User sleep").await;
    server.silence().expect("the network can be silent");
    let all = tokio::spawn(granted(ask(&client, true).await));
    server.mend().expect("it can be mended");
    let others = "SELECT COUNT(*) FROM fencepost_token WHERE name <> 'lock/30' AND IS_USED_LOCK(lock_name) IS NOT NULL";
    eventually(SOON, "the others are granted", || async {
        server.run(others).expect("the server answers").trim() == (CLAIMS - 1).to_string()
    })
    .await;
    by_hand.kill().await.expect("it can be killed");
    release(all.await.expect("no panic")).await;
    assert_eq!(held(&server), "0");
    client.close().await;
}

/// The server commits the tokens of a group, and the reply is lost. Later grants have greater ones.
#[tokio::test]
async fn a_lost_reply_gives_no_token_twice() {
    needs!(MARIADB);
    let (mut server, client) = start().await;
    server.silence().expect("the network can be silent");
    let all = ask(&client, false).await;
    server.mend().expect("it can be mended");
    let guards = granted(all).await;
    let last = guards.iter().map(|guard| guard.token()).max().expect("there are some");
    release(guards).await;
    // The second statement waits at the server until the gate is open.
    let trigger = "CREATE TRIGGER gate BEFORE INSERT ON fencepost_token FOR EACH ROW \
                   SET @taken = IF(NEW.name = 'lock/1', GET_LOCK('gate', 100), 0), \
                   @released = IF(@taken, RELEASE_LOCK('gate'), 0)";
    server.run(trigger).expect("made");
    let mut by_hand = by_hand(&server, "DO GET_LOCK('gate', 0)");
    await_state(&server, "User sleep").await;
    server.silence().expect("the network can be silent");
    let all = tokio::spawn(granted(ask(&client, true).await));
    server.mend().expect("it can be mended");
    await_state(&server, "User lock").await;
    server.silence().expect("the network can be silent");
    by_hand.kill().await.expect("it can be killed");
    let drawn = format!("SELECT COUNT(*) FROM fencepost_token WHERE token > {last}");
    let all_drawn = CLAIMS.to_string();
    eventually(SOON, "the tokens are committed", || async {
        server.run(&drawn).expect("the server answers").trim() == all_drawn
    })
    .await;
    let lost = server.run("SELECT name, token FROM fencepost_token").expect("the server answers");
    let lost: std::collections::HashMap<&str, u64> = lost
        .lines()
        .filter_map(|row| row.split_once('\t'))
        .map(|(name, token)| (name, token.parse().expect("a number")))
        .collect();
    server.cut().expect("the network can be cut");
    server.mend().expect("it can be mended");
    let mut guards = all.await.expect("no panic");
    for (number, guard) in guards.iter().enumerate().skip(1) {
        assert!(guard.token().get() > lost[&*format!("lock/{number}")], "lock/{number}: {}", guard.token());
    }
    // The first one had its reply, and was lost with the connection.
    drop(guards.remove(0));
    release(guards).await;
    assert_eq!(held(&server), "0");
    client.close().await;
}

/// Claims behind a statement of a connection that ends try again on a new one.
#[tokio::test]
async fn claims_that_wait_for_a_group_survive_the_end_of_their_connection() {
    needs!(MARIADB);
    let (mut server, client) = start().await;
    server.silence().expect("the network can be silent");
    let all = ask(&client, true).await;
    let sessions =
        "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'root' AND ID <> CONNECTION_ID()";
    let session = server.run(sessions).expect("the server answers");
    server.run(&format!("KILL {session}")).expect("the session can be ended");
    server.mend().expect("it can be mended");
    let guards = granted(all).await;
    assert_eq!(held(&server), CLAIMS.to_string());
    release(guards).await;
    client.close().await;
}

/// A lock that was taken, and whose row does not name the session any more, is released and taken again.
#[tokio::test]
async fn a_lock_without_its_row_does_not_stay_locked() {
    needs!(MARIADB);
    let (mut server, client) = start().await;
    let first = client.mutex("first").expect("a good name").lock().await.expect("it is free");
    first.release().await.expect("it was held");
    for event in ["INSERT", "UPDATE"] {
        let forget = "ON fencepost_token FOR EACH ROW SET NEW.session = 0";
        let trigger = format!("CREATE TRIGGER forget_{event} BEFORE {event} {forget}");
        server.run(&trigger).expect("the server answers");
    }
    server.silence().expect("the network can be silent");
    let all = ask(&client, false).await;
    server.mend().expect("it can be mended");
    let guards = granted(all).await;
    assert_eq!(held(&server), CLAIMS.to_string());
    release(guards).await;
    assert_eq!(held(&server), "0");
    client.close().await;
}
