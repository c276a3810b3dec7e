//! The end of a run, as the next holder sees it.

use crate::conformance::Stage;
use crate::conformance::stage::{KEEP, LONG, SOON, lock};
use crate::history::Mode;
use fencepost_core::{Client, Firing};
use std::time::Duration;

/// Longer than a case.
const WINDOW: Duration = Duration::from_secs(3600);
const ROUNDS: usize = 10;

/// The end of a run is stored before the next holder is granted, or with that. So a firing that ended well does not run again.
pub(super) async fn the_next_holder_sees_how_the_run_before_it_ended(stage: Stage) {
    let capabilities = stage.client().await.capabilities().clone();
    if !capabilities.history || !capabilities.inspect {
        let refused = stage.refusable(Client::builder().ttl(LONG).history(KEEP)).await;
        assert!(refused.expect_err("the engine keeps no runs").is_unsupported());
        return;
    }
    let (one, two, look) =
        (stage.keeper("one@host").await, stage.keeper("two@host").await, stage.client().await);
    let mut guard = lock(&one, "lock", Mode::Exclusive).await.expect("it is free");
    for round in 0..ROUNDS {
        let next = if round % 2 == 0 { &two } else { &one };
        let waiting = stage.stand_of(next.clone(), "lock", Mode::Exclusive).await;
        let token = guard.token();
        guard.report(0);
        // The next one is granted before this one is answered.
        let release = tokio::spawn(guard.release());
        guard = waiting.granted().await;
        let runs = look.inspect("lock").await.expect("the engine can look").runs.expect("it keeps runs");
        let seen = [&runs.running, &runs.last, &runs.good].map(|run| run.as_ref().map(|run| run.token));
        assert_eq!(seen, [Some(guard.token()), Some(token), Some(token)], "round {round}: {runs:?}");
        release.await.expect("it ran").expect("it was held");
    }
    guard.release().await.expect("it was held");

    for round in 0..ROUNDS {
        let name = format!("job {round}");
        let once = |client: &Client| client.once(&name, WINDOW).expect("a good name").retry();
        let Some(Firing::First(guard)) = once(&one).try_begin().await.expect("the engine answers") else {
            panic!("it has not run");
        };
        let waiting = once(&two);
        let waiting = tokio::spawn(async move { waiting.begin().wait(LONG).await });
        let waits = || async { look.inspect(&name).await.is_ok_and(|info| info.waiters().count() > 0) };
        stage.eventually("it waits for the run", waits).await;
        guard.report(0);
        guard.release().await.expect("it was held");
        let firing = tokio::time::timeout(SOON, waiting).await.expect("it is free").expect("it ran");
        let Firing::Already(run) = firing.expect("the engine answers") else { panic!("it runs twice") };
        assert!(run.is_good(), "round {round}: {run:?}");
    }
}
