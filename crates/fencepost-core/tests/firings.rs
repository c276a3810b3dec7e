//! Firings beside runs that take their lock by other means, on a clock that the test moves.

mod manual_time;

use std::time::Duration;

use fencepost_core::{Client, Clock, Firing, Memory};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// The start finds that the run before is of another firing, and queues for the lock behind a run that begins more than half a window after
/// that one.
#[tokio::test]
async fn a_run_by_other_means_that_came_while_a_start_waited_is_that_of_its_firing() {
    let clock = Clock::manual();
    let builder = Client::builder().history(24 * HOUR).runtime(manual_time::runtime(1, &clock));
    let client = builder.open(|_| Ok(Memory::new())).unwrap();
    let (mutex, queued) = (client.mutex("job").unwrap(), client.mutex("job").unwrap());
    let before = mutex.lock().await.unwrap();
    manual_time::pass(&clock, 40 * MINUTE).await;
    let queued = tokio::spawn(async move { queued.lock().await });
    manual_time::settle().await;
    let once = client.once("job", HOUR).unwrap();
    let starts = tokio::spawn(async move { once.begin().await });
    manual_time::settle().await;
    assert_eq!(client.inspect("job").await.unwrap().claims.len(), 3, "both wait");
    manual_time::pass(&clock, MINUTE).await;
    before.report(0);
    before.release().await.unwrap();
    let other = queued.await.unwrap().unwrap();
    let token = other.token();
    other.report(0);
    other.release().await.unwrap();
    let Firing::Already(run) = starts.await.unwrap().unwrap() else { panic!("the firing runs twice") };
    assert_eq!(run.token, token);
    // The grant of the late start leaves neither a claim nor a run.
    client.runtime().cleaner().idle().await;
    let info = client.inspect("job").await.unwrap();
    let runs = info.runs.unwrap();
    assert_eq!((info.claims.len(), runs.running), (0, None));
    assert_eq!(runs.last.unwrap().token, token);
    manual_time::pass(&clock, HOUR).await;
    let next = client.once("job", HOUR).unwrap().try_begin().await.unwrap();
    let Some(Firing::First(guard)) = next else { panic!("the next firing does not run") };
    guard.release().await.unwrap();
}

/// Whoever renews the lease of the run does not renew that of the decision.
#[tokio::test]
async fn a_start_whose_lease_is_not_renewed_waits_for_longer_than_that_lease() {
    let clock = Clock::manual();
    let builder = Client::builder().runtime(manual_time::runtime(1, &clock));
    let client = builder.open(|_| Ok(Memory::new())).unwrap();
    let before = client.mutex("job").unwrap().lock().await.unwrap();
    let once = client.once("job", HOUR).unwrap();
    let starts = tokio::spawn(async move { once.begin().ttl(MINUTE).no_renewal().await });
    manual_time::pass(&clock, 10 * MINUTE).await;
    before.release().await.unwrap();
    let Firing::First(guard) = starts.await.unwrap().unwrap() else { panic!("it has not run") };
    manual_time::pass(&clock, 2 * MINUTE).await;
    assert!(guard.ensure_held().is_err(), "nobody has extended its lease");
}
