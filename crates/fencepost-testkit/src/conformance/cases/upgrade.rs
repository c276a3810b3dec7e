//! Read locks that become write locks, and the other way round.

use crate::chaos::Odds;
use crate::conformance::Stage;
use crate::conformance::cases::cancel::polled;
use crate::conformance::stage::{LONG, SHORT, SOON, lock, try_lock};
use crate::history::Mode;
use fencepost_core::{Client, Error, Eviction, Guard, Loss, Result, Token};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

/// An upgrade that waits, with the guard.
pub(super) struct Upgrading(JoinHandle<(Guard, Result<()>)>);

impl Upgrading {
    /// Begins an upgrade beside other readers, and returns when the engine has its mark.
    pub(super) async fn begin(stage: &Stage, mut guard: Guard) -> Upgrading {
        let name = guard.name().to_string();
        let upgrading = Upgrading(tokio::spawn(async move {
            let upgraded = guard.upgrade().await;
            (guard, upgraded)
        }));
        let other = stage.client().await;
        stage.eventually("the upgrade waits", || async { !is_admitted(&other, &name).await }).await;
        upgrading
    }

    async fn end(self) -> (Guard, Result<()>) {
        tokio::time::timeout(SOON, self.0).await.expect("it is alone").expect("the task does not panic")
    }

    pub(super) async fn upgraded(self) -> Guard {
        let (guard, upgraded) = self.end().await;
        upgraded.expect("it is alone");
        assert_eq!(Mode::from(guard.mode()), X);
        guard
    }
}

/// Whether a new reader is admitted now.
async fn is_admitted(client: &Client, name: &str) -> bool {
    match try_lock(client, name, S).await.expect("busy is no error") {
        Some(guard) => {
            guard.release().await.expect("it was held");
            true
        }
        None => false,
    }
}

/// Fails unless the guard is a reader without a mark, and others are admitted beside it.
async fn assert_reads(stage: &Stage, guard: &Guard, token: Token) {
    guard.ensure_held().expect("it is held as before");
    assert_eq!((Mode::from(guard.mode()), guard.token()), (S, token));
    let (other, name) = (stage.client().await, guard.name().as_str());
    stage.eventually("readers are admitted again", || is_admitted(&other, name)).await;
    assert!(try_lock(&other, name, X).await.expect("busy is no error").is_none(), "the reader is gone");
}

fn greater(stage: &Stage, now: Token, before: Token) {
    assert!(now > before || !stage.namespace().ordered_tokens(), "token {now} after {before}");
}

pub(super) async fn a_reader_upgrades(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let mut guard = lock(&one, "lock", S).await.expect("it is free");
    let mut before = guard.token();
    for round in 0..5 {
        if round % 2 == 0 {
            guard.upgrade().wait(SOON).await.expect("it reads alone");
        } else {
            assert!(guard.try_upgrade().await.expect("it reads alone"));
        }
        assert_eq!(Mode::from(guard.mode()), X);
        greater(&stage, guard.token(), before);
        before = guard.token();
        assert!(!is_admitted(&two, "lock").await, "a reader beside a writer");
        stage.assert_held(&guard).await;
        guard.upgrade().await.expect("it writes already");
        assert_eq!(guard.token(), before);
        if one.capabilities().inspect {
            let info = two.inspect("lock").await.expect("the engine can look");
            let holders: Vec<_> = info.holders().map(|claim| (Mode::from(claim.mode), claim.token)).collect();
            assert_eq!(holders, [(X, Some(before))], "{info:?}");
        }
        guard.extend(LONG).await.expect("it is held");
        guard.downgrade().await.expect("it is held");
        assert_reads(&stage, &guard, before).await;
        guard.downgrade().await.expect("it reads already");
    }
    let waiting = stage.stand("lock", X).await;
    guard.release().await.expect("it was held");
    let mut guard = waiting.granted().await;
    if one.capabilities().detach {
        guard.downgrade().await.expect("it writes");
        let lease = guard.detach().await.expect("it is held");
        assert_eq!(Mode::from(lease.mode()), S);
        guard = one.attach(&lease).await.expect("it is there");
        guard.upgrade().wait(SOON).await.expect("it reads alone");
        let lease = guard.detach().await.expect("it is held");
        assert_eq!(Mode::from(lease.mode()), X);
        guard = two.attach(&lease).await.expect("it is there");
        assert_eq!((Mode::from(guard.mode()), guard.token()), (X, lease.token()));
    }
    greater(&stage, guard.token(), before);
    guard.downgrade().await.expect("it writes");
    guard.upgrade().wait(SOON).await.expect("it reads alone");
    drop(guard);
    stage.assert_free("lock").await;
    if one.capabilities().history && one.capabilities().inspect {
        assert_one_run(&stage).await;
    }
}

/// The run of an upgraded grant is that of the reader, under the new token.
async fn assert_one_run(stage: &Stage) {
    let keeper = stage.keeper("a reader that writes").await;
    let other = lock(&keeper, "run", S).await.expect("it is free");
    let mut guard = lock(&keeper, "run", S).await.expect("readers fit beside readers");
    give_up(2, &mut guard).await;
    other.release().await.expect("it was held");
    guard.upgrade().wait(SOON).await.expect("it reads alone");
    let running =
        async || keeper.inspect("run").await.expect("the engine can look").runs.expect("it keeps runs");
    let run = running().await.running.expect("it is under way");
    assert_eq!(run.token, guard.token());
    guard.report(0);
    let token = guard.token();
    guard.release().await.expect("it was held");
    let runs = running().await;
    let last = runs.last.expect("it has ended");
    assert_eq!((last.token, last.is_good()), (token, true));
    assert_eq!(runs.running, None);
}

pub(super) async fn an_upgrade_goes_before_all_that_wait(stage: Stage) {
    let client = stage.client().await;
    let first = lock(&client, "lock", S).await.expect("it is free");
    let before = first.token();
    let second = lock(&client, "lock", S).await.expect("readers fit beside readers");
    let third = lock(&stage.client().await, "lock", S).await.expect("readers fit beside readers");
    let latest = third.token();
    let writer = stage.stand("lock", X).await;
    let reader = stage.stand("lock", S).await;
    let upgrading = Upgrading::begin(&stage, first).await;
    second.release().await.expect("it was held");
    assert!(!writer.is_answered() && !reader.is_answered() && !upgrading.0.is_finished(), "one still reads");
    drop(third);
    let guard = upgrading.upgraded().await;
    greater(&stage, guard.token(), before.max(latest));
    assert!(!writer.is_answered() && !reader.is_answered(), "somebody holds beside the writer");
    guard.release().await.expect("it was held");
    if client.capabilities().fair {
        let next = writer.granted().await;
        assert!(!reader.is_answered(), "a reader holds beside the writer");
        next.release().await.expect("it was held");
        reader.granted().await.release().await.expect("it was held");
    } else {
        let through =
            async |waiting: crate::conformance::stage::Waiting| waiting.granted().await.release().await;
        let (one, two) = tokio::join!(through(writer), through(reader));
        one.and(two).expect("they were held");
    }
    stage.assert_free("lock").await;
}

pub(super) async fn a_second_upgrade_is_refused(stage: Stage) {
    let client = stage.client().await;
    let first = lock(&client, "lock", S).await.expect("it is free");
    let mut second = lock(&stage.client().await, "lock", S).await.expect("readers fit beside readers");
    let token = second.token();
    let upgrading = Upgrading::begin(&stage, first).await;
    for _ in 0..2 {
        let error = second.upgrade().await.expect_err("the first one waits for it");
        assert!(error.is_upgrade_conflict(), "{error}");
        let error = second.try_upgrade().await.expect_err("the first one waits for it");
        assert!(error.is_upgrade_conflict(), "{error}");
        second.ensure_held().expect("it still reads");
        assert_eq!((Mode::from(second.mode()), second.token()), (S, token));
        assert!(!upgrading.0.is_finished(), "a writer beside a reader");
        assert!(!is_admitted(&client, "lock").await, "the mark of the first one is gone");
    }
    if client.capabilities().inspect {
        let info = client.inspect("lock").await.expect("the engine can look");
        let modes: Vec<_> = info.holders().map(|claim| Mode::from(claim.mode)).collect();
        assert_eq!(modes, [S, S], "a marked reader is listed as a reader: {info:?}");
    }
    second.release().await.expect("it was held");
    upgrading.upgraded().await.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

pub(super) async fn an_upgrade_given_up_leaves_a_reader(stage: Stage) {
    let slow = Odds { late_request: 1000, late_reply: 1000, delay: Duration::from_millis(4), ..Odds::NONE };
    let other = lock(&stage.client_called("the other reader").await, "lock", S).await.expect("it is free");
    for client in [stage.client().await, stage.troubled(slow, LONG).await] {
        let mut guard = lock(&client, "lock", S).await.expect("readers fit beside readers");
        let token = guard.token();
        for most in 0..8 {
            give_up(most, &mut guard).await;
            assert_reads(&stage, &guard, token).await;
        }
        assert!(!guard.try_upgrade().await.expect("busy is no error"), "the other one reads");
        assert_reads(&stage, &guard, token).await;
        let error = timed_out(&mut guard).await;
        assert!(error.is_timeout(), "{error}");
        if client.capabilities().inspect {
            assert!(error.to_string().contains("the other reader"), "{error}");
        }
        assert_reads(&stage, &guard, token).await;
        // Given up, it is extended, upgraded or released without a pause.
        give_up(2, &mut guard).await;
        guard.extend(LONG).await.expect("it is held");
        give_up(2, &mut guard).await;
        guard.release().await.expect("it was held");
        let mut guard = lock(&client, "lock", S).await.expect("no mark is left");
        give_up(2, &mut guard).await;
        drop(guard);
    }
    let client = stage.client().await;
    stage.eventually("no mark is left", || is_admitted(&client, "lock")).await;
    other.release().await.expect("it was held");
    // Dropped when it may have been granted.
    let client = stage.troubled(slow, LONG).await;
    let mut guard = lock(&client, "lock", S).await.expect("it is free");
    for most in 0..8 {
        let upgraded = polled(most, async { guard.upgrade().await.expect("it reads alone") }).await.is_some();
        if upgraded {
            guard.downgrade().await.expect("it writes");
        }
        let token = guard.token();
        assert_reads(&stage, &guard, token).await;
    }
    guard.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

/// Begins an upgrade beside another reader, and drops it after this many polls, or when it waits.
async fn give_up(most: u32, guard: &mut Guard) {
    let begun = polled(most, async { guard.upgrade().await });
    let given_up = tokio::time::timeout(Duration::from_millis(20), begun).await;
    assert!(!matches!(given_up, Ok(Some(_))), "the other one reads");
}

/// Upgrades with a waiting time that ends. A slow engine gets another try with a longer one, to name the holders in time.
async fn timed_out(guard: &mut Guard) -> Error {
    let mut wait = Duration::from_millis(100);
    loop {
        let error = guard.upgrade().wait(wait).await.expect_err("the other one reads");
        if !error.holders().is_empty() || wait > SOON {
            return error;
        }
        wait *= 4;
    }
}

pub(super) async fn an_upgrader_that_is_gone_frees(stage: Stage) {
    let client = stage.client().await;
    let other = lock(&client, "lock", S).await.expect("it is free");
    let ttl = SHORT.max(client.capabilities().min_ttl);
    let deaf = stage.deaf(ttl).await;
    let mut guard = lock(&deaf, "lock", S).await.expect("readers fit beside readers");
    let waiting = async { guard.upgrade().await.expect_err("its renewals are lost") };
    let error = tokio::time::timeout(SOON + ttl, waiting).await.expect("it is told of the loss");
    assert!(error.is_lost(), "{error}");
    stage.eventually("its mark ends with its lease", || is_admitted(&client, "lock")).await;
    drop(guard);
    let rwlock = client.rwlock("lock").expect("a good name");
    let mut guard = rwlock.read().max_hold(SHORT).await.expect("readers fit beside readers");
    let waiting = async { guard.upgrade().await.expect_err("its longest time ends") };
    let error = tokio::time::timeout(SOON, waiting).await.expect("it is told of the loss");
    assert_eq!(error.loss(), Some(Loss::MaxHold), "{error}");
    stage.eventually("its grant is over", || is_admitted(&client, "lock")).await;
    drop(guard);
    if client.capabilities().evict {
        let guard = lock(&client, "lock", S).await.expect("readers fit beside readers");
        let token = guard.token();
        let upgrading = Upgrading::begin(&stage, guard).await;
        client.evict("lock", token, &Eviction::default()).await.expect("it holds");
        let (guard, upgraded) = tokio::time::timeout(SOON, upgrading.end()).await.expect("it is told");
        let error = upgraded.expect_err("it was evicted");
        assert!(error.loss() == Some(Loss::Evicted), "{error}");
        drop(guard);
        stage.eventually("no mark is left", || is_admitted(&client, "lock")).await;
    }
    other.ensure_held().expect("it reads all the time");
    other.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

pub(super) async fn a_downgrade_lets_readers_in(stage: Stage) {
    let client = stage.client().await;
    let mut guard = client.rwlock("lock").expect("a good name").write().await.expect("it is free");
    let token = guard.token();
    let readers = [stage.stand("lock", S).await, stage.stand("lock", S).await];
    let writer = stage.stand("lock", X).await;
    let late = stage.stand("lock", S).await;
    assert!(readers.iter().all(|reader| !reader.is_answered()), "a reader beside a writer");
    guard.downgrade().await.expect("it writes");
    assert_eq!((Mode::from(guard.mode()), guard.token()), (S, token));
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.granted().await);
    }
    assert!(!writer.is_answered(), "a writer beside readers");
    if client.capabilities().fair {
        assert!(!late.is_answered(), "a reader overtook the writer");
    }
    guard.ensure_held().expect("it was never free");
    guard.release().await.expect("it was held");
    for guard in guards {
        guard.release().await.expect("it was held");
    }
    let writer = writer.granted().await;
    greater(&stage, writer.token(), token);
    writer.release().await.expect("it was held");
    late.granted().await.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

/// Upgrades, or gives way and writes later, on a network that loses, repeats and delays requests.
pub(super) async fn upgrades_on_a_bad_network(stage: Stage) {
    let odds = Odds { delay: Duration::from_millis(20), lost_reply: 150, repeated: 150, ..Odds::BAD };
    // Writers that are inside, and readers that are.
    let inside = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let mut running = Vec::new();
    for _ in 0..3 {
        let (locks, inside, stage) = (stage.troubled(odds, LONG).await, Arc::clone(&inside), stage.clone());
        running.push(tokio::spawn(async move {
            let mut upgrades = 0;
            for _ in 0..8 {
                let mut guard = lock(&locks, "lock", S).await.expect("it comes");
                let read = guard.token();
                inside[1].fetch_add(1, Ordering::SeqCst);
                assert_eq!(inside[0].load(Ordering::SeqCst), 0, "a reader beside a writer");
                tokio::task::yield_now().await;
                // Counted out before: from its grant on it is no reader any more.
                inside[1].fetch_sub(1, Ordering::SeqCst);
                match guard.upgrade().await {
                    Ok(()) => {
                        greater(&stage, guard.token(), read);
                        assert_eq!(inside[0].fetch_add(1, Ordering::SeqCst), 0, "two write");
                        assert_eq!(inside[1].load(Ordering::SeqCst), 0, "a reader beside a writer");
                        tokio::task::yield_now().await;
                        inside[0].fetch_sub(1, Ordering::SeqCst);
                        upgrades += 1;
                        guard.downgrade().await.expect("it writes");
                    }
                    Err(error) => assert!(error.is_upgrade_conflict(), "{error}"),
                }
                drop(guard);
            }
            upgrades
        }));
    }
    let mut upgrades = 0;
    for task in running {
        upgrades +=
            tokio::time::timeout(4 * SOON, task).await.expect("nobody waits for ever").expect("no panic");
    }
    assert!(upgrades > 0, "nothing was proved");
    stage.assert_free("lock").await;
}
