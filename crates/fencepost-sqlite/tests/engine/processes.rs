//! Locks between real processes that crash, stop and come back.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Database, Process, SOON, connect, eventually, say, told};
use fencepost_core::{Client, Eviction, Guard, Loss, State};
use fencepost_sqlite::Holding;
use fencepost_testkit::wait::all_along;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rusqlite::OptionalExtension as _;

pub(crate) const NAME: &str = "stock/42";

/// A lease that does not end while a busy machine stalls, and is renewed soon.
const LEASE: Duration = Duration::from_secs(8);

/// Plays the part of a process that these tests start.
pub(crate) async fn play(role: &str, url: &str) {
    if role == "write" {
        let path = url.strip_prefix("sqlite:").unwrap();
        let db = rusqlite::Connection::open(path).unwrap();
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        say("writing");
        return told();
    }
    if let Some(sql) = role.strip_prefix("maintain ") {
        let path = url.strip_prefix("sqlite:").unwrap();
        rusqlite::Connection::open(path).unwrap().query_row(sql, [], |_| Ok(())).optional().unwrap();
        return say("done");
    }
    let locks = connect(url).await;
    let lock = locks.mutex(NAME).unwrap();
    match role {
        "hold" => {
            let guard = lock.lock().await.unwrap();
            say(&format!("held {}", guard.token()));
            told();
            guard.release().await.unwrap();
            say("released");
        }
        "wait" => {
            say("waiting");
            let guard = lock.lock().await.unwrap();
            say(&format!("held {}", guard.token()));
            told();
        }
        "hold briefly" => {
            let guard = lock.lock().ttl(Duration::from_millis(500)).await.unwrap();
            say(&format!("held {}", guard.token()));
            told();
            say(&format!("{:?}", guard.state()));
            say(if guard.release().await.is_err_and(|error| error.is_lost()) { "lost" } else { "not lost" });
        }
        "come and go" => {
            locks.mutex("another").unwrap().lock().await.unwrap().release().await.unwrap();
            locks.close().await;
            drop(locks);
            say("gone");
        }
        "hold until lost" => {
            let guard = lock.lock().await.unwrap();
            say(&format!("held {}", guard.token()));
            let why = guard.lost().await;
            say(&format!("lost {why:?}"));
            told();
            drop(guard);
        }
        "pin" => {
            let mut guard = lock.lock().ttl(Duration::from_millis(500)).await.unwrap();
            let holding: &mut Holding = guard.native().unwrap().downcast_mut().unwrap();
            let inherited = holding.descriptor().unwrap();
            say(&format!("side file {}", holding.side_file().display()));
            let mut child = Command::new("sleep").arg("1000").stderr(Stdio::from(inherited)).spawn().unwrap();
            say(&format!("child {}", child.id()));
            told();
            child.kill().unwrap();
            child.wait().unwrap();
        }
        "count" => {
            for _ in 0..50 {
                let guard = lock.lock().await.unwrap();
                let file = std::path::Path::new(url.strip_prefix("sqlite:").unwrap()).with_extension("count");
                let count: u64 = std::fs::read_to_string(&file).map_or(0, |text| text.parse().unwrap());
                std::fs::write(&file, (count + 1).to_string()).unwrap();
                guard.release().await.unwrap();
            }
            locks.close().await;
            say("done");
        }
        other => panic!("{other} is no role"),
    }
}

pub(crate) async fn soon(locks: &Client) -> Guard {
    locks.mutex(NAME).unwrap().lock().wait(SOON).await.unwrap()
}

pub(crate) async fn is_busy(locks: &Client) -> bool {
    locks.mutex(NAME).unwrap().try_lock().await.unwrap().is_none()
}

/// Waits until so many wait in the queue.
async fn waiters(locks: &Client, n: usize) {
    eventually("they wait in the queue", async || locks.inspect(NAME).await.unwrap().waiters().count() == n)
        .await;
}

pub(crate) fn token(process: &Process) -> u64 {
    process.hears("held").parse().unwrap()
}

#[tokio::test]
async fn processes_take_turns_and_leave_nothing() {
    let database = Database::new();
    let mut processes: Vec<_> = (0..6).map(|_| database.start("count")).collect();
    for process in &mut processes {
        process.hears("done");
        process.ends();
    }
    let counted = std::fs::read_to_string(database.path().with_extension("count")).unwrap();
    assert_eq!(counted, "300");
    assert_eq!(database.claims(), 0);
    assert_eq!(database.sides(), Vec::<String>::new());
}

#[tokio::test]
async fn a_killed_holder_is_succeeded_long_before_its_lease_ends() {
    let database = Database::new();
    let locks = database.locks().await;
    for _ in 0..3 {
        let mut holder = database.start("hold");
        let first = token(&holder);
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { soon(&locks).await }
        });
        waiters(&locks, 1).await;
        holder.kill();
        let killed = std::time::Instant::now();
        let guard = waiting.await.unwrap();
        assert!(guard.token().get() > first);
        assert!(killed.elapsed() < Duration::from_secs(10), "its lease was 30 s");
        guard.release().await.unwrap();
    }
}

/// The wall clock stands behind the last token, as after a step back: only the row of the lock knows that token.
#[tokio::test]
async fn a_killed_holder_leaves_the_last_token() {
    let database = Database::new();
    soon(&database.locks().await).await.release().await.unwrap();
    let mut holder = database.start("hold");
    let ahead = token(&holder) + 1_000_000_000_000;
    database.maintain(&format!("UPDATE line SET last = {ahead}, token = {ahead} WHERE seq = 0"));
    holder.kill();
    // The first claim of a new client clears away what dead ones have left.
    let locks = database.locks().await;
    locks.mutex("another").unwrap().lock().await.unwrap().release().await.unwrap();
    eventually("the dead one's row is cleared away", async || database.claims() == 0).await;
    assert!(soon(&locks).await.token().get() > ahead);
}

#[tokio::test]
async fn a_killed_waiter_is_passed_over() {
    let database = Database::new();
    let locks = database.locks().await;
    let guard = soon(&locks).await;
    let mut first = database.start("wait");
    waiters(&locks, 1).await;
    let second = database.start("wait");
    waiters(&locks, 2).await;
    first.kill();
    guard.release().await.unwrap();
    token(&second);
}

#[tokio::test]
async fn the_files_of_the_dead_are_cleared_away() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut holder = database.start("hold");
    token(&holder);
    holder.kill();
    assert_eq!(database.sides().len(), 2, "a side file and a bell");
    soon(&locks).await.release().await.unwrap();
    eventually("what is left is ours", async || database.sides().len() <= 2).await;
    locks.close().await;
    assert_eq!(database.sides(), Vec::<String>::new());
}

#[tokio::test]
async fn a_stopped_holder_loses_after_its_lease_and_knows_it_when_it_wakes() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut holder = database.start("hold briefly");
    let first = token(&holder);
    holder.signal(Signal::SIGSTOP);
    let guard = soon(&locks).await;
    assert!(guard.token().get() > first);
    holder.signal(Signal::SIGCONT);
    holder.goes_on();
    holder.hears("Lost(Expired)");
    holder.hears("lost");
    assert_eq!(guard.state(), State::Held);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_stopped_waiter_holds_nobody_up() {
    let database = Database::new();
    let locks = database.locks().await;
    let guard = soon(&locks).await;
    let stopped = database.start("wait");
    waiters(&locks, 1).await;
    let other = database.start("wait");
    waiters(&locks, 2).await;
    // Not before: its position outlives the stop by 3 s only.
    stopped.signal(Signal::SIGSTOP);
    guard.release().await.unwrap();
    let start = std::time::Instant::now();
    token(&other);
    assert!(start.elapsed() < Duration::from_secs(20), "a position in the queue outlives its process by 3 s");
    stopped.signal(Signal::SIGCONT);
    assert!(!stopped.has_said("held"));
    drop(other);
    token(&stopped);
}

#[tokio::test]
async fn a_process_stopped_while_writing_costs_no_other_its_lease() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut guard = locks.mutex(NAME).unwrap().lock().ttl(SOON).await.unwrap();
    let writer = database.start("write");
    writer.hears("writing");
    writer.signal(Signal::SIGSTOP);
    // Renewed although the database cannot be written. An extension is a renewal that comes now.
    for _ in 0..2 {
        let before = guard.valid_until();
        guard.extend(SOON).await.unwrap();
        assert!(guard.valid_until() > before);
    }
    let error = locks.mutex("another").unwrap().try_lock().await.unwrap_err();
    let message = format!("{error:?} {error}");
    assert!(error.is_unreachable() && message.contains(&writer.pid().to_string()), "{message}");
    assert!(message.contains("stopped"), "{message}");
    let release = tokio::spawn(guard.release());
    writer.signal(Signal::SIGCONT);
    drop(writer);
    release.await.unwrap().unwrap();
    assert!(!is_busy(&locks).await);
}

#[tokio::test]
async fn an_evicted_holder_is_told_and_the_next_follows_its_release() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut holder = database.start("hold until lost");
    let first = token(&holder);
    let wrong = locks.evict(NAME, fencepost_core::Token::new(first + 1), &Eviction::default()).await;
    assert!(wrong.unwrap_err().is_mismatch());
    locks.evict(NAME, fencepost_core::Token::new(first), &Eviction::default()).await.unwrap();
    assert_eq!(holder.hears("lost"), "Evicted");
    assert!(is_busy(&locks).await, "it has not let go yet");
    assert!(locks.inspect(NAME).await.unwrap().holders().all(|claim| claim.evicted));
    holder.goes_on();
    soon(&locks).await.release().await.unwrap();
}

#[tokio::test]
async fn a_holder_that_was_evicted_while_stopped_gets_no_renewal() {
    let database = Database::new();
    let locks = database.locks().await;
    loop {
        let holder = database.start("hold briefly");
        let first = token(&holder);
        holder.signal(Signal::SIGSTOP);
        match locks.evict(NAME, fencepost_core::Token::new(first), &Eviction::default()).await {
            Ok(()) => break soon(&locks).await.release().await.unwrap(),
            // On a machine that stalls its lease has ended.
            Err(error) => assert!(error.is_mismatch(), "{error}"),
        }
    }
}

#[tokio::test]
async fn evicting_now_frees_at_once() {
    let database = Database::new();
    let locks = database.locks().await;
    let holder = database.start("hold until lost");
    let first = token(&holder);
    let now = Eviction::new(true);
    locks.evict(NAME, fencepost_core::Token::new(first), &now).await.unwrap();
    assert!(!is_busy(&locks).await);
    assert_eq!(holder.hears("lost"), "Evicted");
}

struct Orphan(Pid);

impl Orphan {
    fn of(process: &Process) -> Orphan {
        Orphan(Pid::from_raw(process.hears("child").parse().unwrap()))
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

#[tokio::test]
async fn a_pinned_grant_lasts_as_long_as_a_child_of_the_killed_holder() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut holder = database.start_at("pin", &format!("{}?pinned=true", database.url()));
    let child = Orphan::of(&holder);
    holder.kill();
    // Longer than its lease of 500 ms.
    all_along(Duration::from_millis(1_500), async || assert!(is_busy(&locks).await, "the child has it"))
        .await;
    drop(child);
    soon(&locks).await.release().await.unwrap();
}

#[tokio::test]
async fn a_pinned_grant_of_a_stopped_holder_ends_when_it_is_said_to_be_over() {
    let database = Database::new();
    let locks = database.locks().await;
    let holder = database.start_at("pin", &format!("{}?pinned=true", database.url()));
    let side_file = holder.hears("side file");
    let _child = Orphan::of(&holder);
    holder.signal(Signal::SIGSTOP);
    all_along(Duration::from_millis(1_500), async || assert!(is_busy(&locks).await, "the child has it"))
        .await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { soon(&locks).await }
    });
    waiters(&locks, 1).await;
    fencepost_sqlite::mark_over(side_file.as_ref()).unwrap();
    waiting.await.unwrap().release().await.unwrap();
}

/// Others take its pinned grants for free from then on.
#[tokio::test]
async fn a_client_that_is_said_to_be_over_is_granted_nothing_more() {
    let database = Database::new();
    let locks = connect(&format!("{}?pinned=true", database.url())).await;
    let mut guard = locks.mutex(NAME).unwrap().lock().ttl(LEASE).await.unwrap();
    let holding: &mut Holding = guard.native().unwrap().downcast_mut().unwrap();
    fencepost_sqlite::mark_over(&holding.side_file()).unwrap();
    let error = locks.mutex("another").unwrap().try_lock().await.unwrap_err();
    assert!(error.is_configuration() && error.to_string().contains("connect again"), "{error}");
    assert_eq!(guard.lost().await, Loss::Deleted);
    let error = locks.mutex(NAME).unwrap().lock().wait(SOON).await.unwrap_err();
    assert!(error.is_configuration() && error.to_string().contains("marked as over"), "{error}");
    drop(guard);
    assert_eq!(database.claims(), 0, "its claims leave as others do");
    soon(&database.locks().await).await.release().await.unwrap();
}

#[tokio::test]
async fn a_holder_that_is_said_to_be_over_is_told_by_its_next_renewal() {
    let database = Database::new();
    let locks = connect(&format!("{}?pinned=true", database.url())).await;
    let mut guard = locks.mutex(NAME).unwrap().lock().ttl(LEASE).await.unwrap();
    let holding: &mut Holding = guard.native().unwrap().downcast_mut().unwrap();
    let side_file = holding.side_file();
    guard.extend(LEASE).await.unwrap();
    fencepost_sqlite::mark_over(&side_file).unwrap();
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Deleted);
}
