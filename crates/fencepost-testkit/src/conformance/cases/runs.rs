//! The runs that an engine keeps for operators.

use crate::chaos::Odds;
use crate::conformance::Stage;
use crate::conformance::stage::{KEEP, LONG, SHORT, builder, evict, lock, try_lock};
use crate::history::Mode;
use crate::wait::Stalls;
use fencepost_core::{Client, Eviction, Loss, Result, Run, RunEnd, Runs};
use std::time::Duration;

const X: Mode = Mode::Exclusive;

async fn runs(client: &Client, name: &str) -> Runs {
    client.inspect(name).await.expect("the engine can look").runs.expect("the engine keeps the runs")
}

fn labels(runs: &Runs) -> [Option<&str>; 3] {
    [&runs.running, &runs.last, &runs.good].map(|run| Some(&*run.as_ref()?.holder.label))
}

pub(super) async fn the_last_run_is_kept(stage: Stage) {
    let (first, second) = (stage.keeper("first@host").await, stage.keeper("second@host").await);
    let look = stage.client().await;
    let guard = first.mutex("lock").expect("a good name").lock().reason("nightly").await.expect("it is free");
    let token = guard.token();
    let seen = runs(&look, "lock").await;
    assert_eq!(labels(&seen), [Some("first@host"), None, None], "{seen:?}");
    guard.report(0);
    guard.release().await.expect("it was held");
    let info = look.inspect("lock").await.expect("the engine can look");
    assert!(info.claims.is_empty(), "{info:?}");
    let seen = info.runs.expect("the engine keeps the runs");
    assert_eq!(labels(&seen), [None, Some("first@host"), Some("first@host")], "{seen:?}");
    let last = seen.last.clone().expect("it was there above");
    assert_eq!((last.token, last.exit_code), (token, Some(0)), "{last:?}");
    assert_eq!((last.holder.pid, last.reason.as_deref()), (std::process::id(), Some("nightly")), "{last:?}");
    assert!(last.is_good() && last.end == RunEnd::Exited, "{last:?}");
    let ended = last.ended_micros.expect("it was released");
    assert!(last.since_micros <= ended && ended <= seen.now_micros, "{seen:?}");
    assert!(seen.age(last.since_micros) < LONG, "{seen:?}");

    // It waits, is granted by the release of another one, and fails. A claim that only waits leaves no run.
    let guard = lock(&first, "lock", X).await.expect("it is free");
    let waiting = stage.stand_of(second.clone(), "lock", X).await;
    let impatient = stage.keeper("impatient@host").await;
    assert!(try_lock(&impatient, "lock", X).await.expect("busy is no error").is_none());
    drop(guard);
    let guard = waiting.granted().await;
    let seen = runs(&look, "lock").await;
    assert_eq!(labels(&seen), [Some("second@host"), Some("first@host"), Some("first@host")], "{seen:?}");
    assert_eq!(seen.last.as_ref().and_then(|run| run.exit_code), None, "it was dropped: {seen:?}");
    assert_eq!(seen.good.as_ref().map(|run| run.token), Some(token), "{seen:?}");
    guard.report(3);
    guard.report(0); // the first counts
    drop(guard);
    let told = || async { runs(&look, "lock").await.last.is_some_and(|run| run.exit_code == Some(3)) };
    stage.eventually("the drop carries the report", told).await;
    let seen = runs(&look, "lock").await;
    assert_eq!(labels(&seen), [None, Some("second@host"), Some("first@host")], "{seen:?}");
}

/// Runs of several holders, of detached leases and of evicted holders, where the engine has those. Nobody's runs are kept unasked.
pub(super) async fn runs_that_share_or_end_unseen(stage: Stage) {
    let capabilities = stage.client().await.capabilities().clone();
    nothing_is_kept_unasked(&stage).await;
    a_run_that_was_stopped_is_not_good(&stage).await;
    if capabilities.evict {
        an_evicted_run_has_no_report(&stage).await;
        an_evicted_run_that_ends_well_is_not_good(&stage).await;
    }
    if capabilities.shared {
        the_run_that_ended_last_is_the_last_one(&stage).await;
    }
    if capabilities.detach {
        a_detached_run_ends_with_its_release(&stage).await;
    }
}

async fn nothing_is_kept_unasked(stage: &Stage) {
    let (silent, keeper) = (stage.client().await, stage.keeper("keeper@host").await);
    let guard = lock(&silent, "unasked", X).await.expect("it is free");
    guard.report(0);
    guard.release().await.expect("it was held");
    assert_eq!(silent.inspect("unasked").await.expect("the engine can look").runs, None);
    let guard = lock(&keeper, "unasked", X).await.expect("it is free");
    guard.release().await.expect("it was held");
    let before = runs(&silent, "unasked").await.last;
    let guard = lock(&silent, "unasked", X).await.expect("it is free");
    guard.report(1);
    guard.release().await.expect("it was held");
    assert_eq!(runs(&silent, "unasked").await.last, before);
}

async fn an_evicted_run_has_no_report(stage: &Stage) {
    let (first, next) = (stage.keeper("first@host").await, stage.keeper("next@host").await);
    let guard = lock(&first, "evicted", X).await.expect("it is free");
    let token = guard.token();
    evict(&next, "evicted", token, &Eviction::new(true)).await.expect("it is held");
    let seen = runs(&next, "evicted").await;
    assert_eq!(labels(&seen), [None, Some("first@host"), None], "{seen:?}");
    let ends =
        |run: &Option<Run>| run.as_ref().map(|run| (run.token, run.ended_micros.is_some(), run.exit_code));
    assert_eq!(ends(&seen.last), Some((token, false, None)), "{seen:?}");
    let other = lock(&next, "evicted", X).await.expect("it is free");
    let seen = runs(&next, "evicted").await;
    assert_eq!(labels(&seen), [Some("next@host"), Some("first@host"), None], "{seen:?}");
    // The evicted one tells its end late.
    guard.report(76);
    assert!(guard.release().await.expect_err("it was evicted").is_lost());
    let told = || async { ends(&runs(&next, "evicted").await.last) == Some((token, true, Some(76))) };
    stage.eventually("the late report arrives", told).await;
    let late = runs(&next, "evicted").await.last.expect("it is told");
    assert!(matches!(late.end, RunEnd::Evicted | RunEnd::Lost), "{late:?}");
    other.ensure_held().expect("it is held");
    other.report(0);
    other.release().await.expect("it was held");
    let seen = runs(&next, "evicted").await;
    assert_eq!(labels(&seen), [None, Some("next@host"), Some("next@host")], "{seen:?}");
}

async fn a_run_that_was_stopped_is_not_good(stage: &Stage) {
    let keeper = stage.keeper("keeper@host").await;
    let guard = lock(&keeper, "stopped", X).await.expect("it is free");
    guard.report_end(0, RunEnd::MaxHold);
    guard.release().await.expect("it was held");
    let seen = runs(&keeper, "stopped").await;
    assert_eq!(labels(&seen), [None, Some("keeper@host"), None], "{seen:?}");
    let last = seen.last.expect("it is the last one");
    assert_eq!((last.exit_code, last.end), (Some(0), RunEnd::MaxHold), "{last:?}");
    // The client takes the lock from work that does not stop.
    let mutex = keeper.mutex("longest").expect("a good name");
    let guard = mutex.lock().max_hold(Duration::from_millis(100)).await.expect("it is free");
    assert_eq!(guard.lost().await, Loss::MaxHold);
    let told = || async { runs(&keeper, "longest").await.last.map(|run| run.end) == Some(RunEnd::MaxHold) };
    stage.eventually("the run has ended", told).await;
    assert_eq!(runs(&keeper, "longest").await.good, None);
}

async fn an_evicted_run_that_ends_well_is_not_good(stage: &Stage) {
    let (first, operator) = (stage.keeper("first@host").await, stage.keeper("operator@host").await);
    let mut stalls = Stalls::default();
    while stalls.spoilt(is_asked_to_stop(&first, &operator).await) {}
    let told =
        || async { runs(&operator, "asked to stop").await.last.map(|run| run.end) == Some(RunEnd::Evicted) };
    stage.eventually("the run has ended", told).await;
    assert_eq!(runs(&operator, "asked to stop").await.good, None);
}

/// An evicted run that ends well. On a machine that stalls, its lease may end before the holder is told.
async fn is_asked_to_stop(first: &Client, operator: &Client) -> Result<()> {
    let mutex = first.mutex("asked to stop").expect("a good name");
    let guard = mutex.lock().ttl(SHORT.max(first.capabilities().min_ttl)).await.expect("it is free");
    let evicted = evict(operator, "asked to stop", guard.token(), &Eviction::default()).await;
    assert!(evicted.is_ok() || guard.ensure_held().is_err(), "{evicted:?}");
    let loss = guard.lost().await;
    guard.report(0);
    let error = guard.release().await.expect_err("it was evicted");
    match loss {
        Loss::Evicted => {
            assert!(error.is_lost(), "{error}");
            Ok(())
        }
        loss => {
            assert_eq!(loss, Loss::Expired);
            Err(error)
        }
    }
}

async fn the_run_that_ended_last_is_the_last_one(stage: &Stage) {
    let (first, second) = (stage.keeper("first@host").await, stage.keeper("second@host").await);
    let (one, two) =
        (lock(&first, "shared", Mode::Shared).await, lock(&second, "shared", Mode::Shared).await);
    let (one, two) = (one.expect("it is free"), two.expect("readers read together"));
    let seen = runs(&first, "shared").await;
    assert_eq!(labels(&seen), [Some("second@host"), None, None], "{seen:?}");
    one.report(0);
    one.release().await.expect("it was held");
    let seen = runs(&first, "shared").await;
    assert_eq!(labels(&seen), [Some("second@host"), Some("first@host"), Some("first@host")], "{seen:?}");
    two.report(1);
    two.release().await.expect("it was held");
    let seen = runs(&first, "shared").await;
    assert_eq!(labels(&seen), [None, Some("second@host"), Some("first@host")], "{seen:?}");
}

async fn a_detached_run_ends_with_its_release(stage: &Stage) {
    let (first, second) = (stage.keeper("first@host").await, stage.keeper("second@host").await);
    let lease = lock(&first, "detached", X).await.expect("it is free").detach().await.expect("it is held");
    let seen = runs(&second, "detached").await;
    assert_eq!(labels(&seen), [Some("first@host"), None, None], "{seen:?}");
    let guard = second.attach(&lease).await.expect("the lease lives");
    guard.report(0);
    guard.release().await.expect("it was held");
    let seen = runs(&second, "detached").await;
    assert_eq!(labels(&seen), [None, Some("first@host"), Some("first@host")], "{seen:?}");
}

pub(super) async fn a_report_arrives_once(stage: Stage) {
    let odds = Odds {
        lost_reply: 300,
        lost_request: 100,
        repeated: 200,
        delay: Duration::from_millis(5),
        ..Odds::NONE
    };
    let troubled = builder(LONG).label("troubled@host").history(KEEP);
    let (client, look) = (stage.troubled_with(troubled, odds).await, stage.client().await);
    for round in 0..20 {
        let guard = lock(&client, "lock", X).await.expect("what was lost is asked again");
        let token = guard.token();
        assert_eq!(runs(&look, "lock").await.running.map(|run| run.token), Some(token), "round {round}");
        guard.report(round);
        guard.release().await.expect("a repeated release finds that it was the first");
        let seen = runs(&look, "lock").await;
        assert_eq!(seen.running, None, "round {round}");
        let last = seen.last.expect("it ended");
        assert_eq!((last.token, last.exit_code), (token, Some(round)), "round {round}");
    }
}
