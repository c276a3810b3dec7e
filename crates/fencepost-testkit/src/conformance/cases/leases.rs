//! Leases and tokens.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SHORT, SOON, evict, lock, lock_fixed, try_lock};
use crate::history::Mode;
use crate::wait::Stalls;
use fencepost_core::{Capabilities, ClaimId, Client, DetachedLease, Result, Token};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const X: Mode = Mode::Exclusive;

/// How often a case begins anew whose lease has expired on a machine that stalls.
const ATTEMPTS: u32 = 5;

/// Returns `ttl`, or the engine's shortest lease if that is longer.
fn at_least(capabilities: &Capabilities, ttl: Duration) -> Duration {
    ttl.max(capabilities.min_ttl)
}

/// Detaches a grant whose lease may be shorter than a busy machine stalls. Returns when it was asked for, too.
async fn detached(client: &Client, name: &str, ttl: Duration) -> (Instant, DetachedLease) {
    let mutex = client.mutex(name).expect("a good name");
    loop {
        let start = Instant::now();
        let detached = match mutex.lock().ttl(ttl).await {
            Ok(guard) => guard.detach().await,
            Err(error) => Err(error),
        };
        match detached {
            Ok(lease) => return (start, lease),
            // Or its grant arrives too late.
            Err(error) => assert!(error.is_lost() || error.is_unreachable(), "{error}"),
        }
    }
}

pub(super) async fn renewed_past_its_lease(stage: Stage) {
    let ttl = at_least(stage.client().await.capabilities(), SHORT);
    let (one, two) = (stage.client_of(ttl).await, stage.client().await);
    let guard = lock(&one, "lock", X).await.expect("it is free");
    let first = guard.valid_until();
    let start = Instant::now();
    while start.elapsed() < 3 * ttl {
        assert!(
            try_lock(&two, "lock", X).await.expect("busy is no error").is_none()
                || guard.ensure_held().is_err()
        );
        tokio::time::sleep(ttl / 10).await;
    }
    // On a machine that stalls the lease may be lost. Then the guard must report it.
    if guard.ensure_held().is_ok() {
        assert!(guard.valid_until() > first, "it was never renewed");
        let (began, left) = (Instant::now(), guard.remaining());
        // The reply to the release may come after the end of so short a lease, which is then no success.
        if let Err(error) = guard.release().await {
            assert!(began.elapsed() >= left, "{error}");
        }
    }
}

pub(super) async fn a_fixed_lease_ends(stage: Stage) {
    let client = stage.client().await;
    let lease = at_least(client.capabilities(), SHORT);
    let mutex = client.mutex("lock").expect("a good name");
    let start = Instant::now();
    let guard = lock_fixed(&mutex, lease).await.expect("it is free");
    let waiting = stage.stand("lock", X).await;
    let next = waiting.granted().await;
    assert!(start.elapsed() >= lease, "the next one was granted before the lease had expired");
    let error = guard.ensure_held().expect_err("its lease has expired");
    assert!(error.is_lost(), "{error}");
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(next.token() > guard.token() || next.token() == Token::default());
    if client.capabilities().clock_tokens {
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_micros() as u64;
        let (tolerance, token) = (600_000_000, next.token().get());
        assert!(token.abs_diff(now) < tolerance, "{token} is no time near {now}");
    }
    drop(guard);
    next.ensure_held().expect("the drop of a lost guard takes nothing from its successor");
    stage.assert_busy("lock").await;
    next.release().await.expect("it was held");
}

pub(super) async fn extend(stage: Stage) {
    let client = stage.client().await;
    let lease = at_least(client.capabilities(), SHORT);
    let mutex = client.mutex("lock").expect("a good name");
    let (start, guard) = loop {
        let start = Instant::now();
        let mut guard = lock_fixed(&mutex, lease).await.expect("it is free");
        match guard.extend(LONG).await {
            Ok(()) => break (start, guard),
            // On a machine that stalls the lease may end before.
            Err(error) => assert!(error.is_lost() && start.elapsed() >= lease / 2, "{error}"),
        }
    };
    assert!(guard.remaining() > lease, "the guard does not know: {:?}", guard.remaining());
    tokio::time::sleep((lease * 2).saturating_sub(start.elapsed())).await;
    guard.ensure_held().expect("it was extended");
    stage.assert_held(&guard).await;
    guard.release().await.expect("it was held");
    // A lost one cannot be extended.
    let mut guard = lock_fixed(&mutex, lease).await.expect("it is free");
    guard.lost().await;
    let error = guard.extend(LONG).await.expect_err("it is lost");
    assert!(error.is_lost(), "{error}");
}

pub(super) async fn lease_bounds(stage: Stage) {
    let client = stage.client().await;
    let mutex = client.mutex("lock").expect("a good name");
    let (min, max) = (client.capabilities().min_ttl, client.capabilities().max_ttl);
    for ttl in [Duration::ZERO, min - Duration::from_millis(1), max + Duration::from_millis(1)] {
        let error = mutex.lock().ttl(ttl).await.expect_err("it is out of bounds");
        assert!(error.is_invalid(), "{ttl:?}: {error}");
    }
    for ttl in [min, max] {
        let (start, guard) = loop {
            let start = Instant::now();
            match mutex.lock().ttl(ttl).await {
                Ok(guard) => break (start, guard),
                // On a busy machine the shortest lease may end before its grant arrives, each time that the call asks.
                Err(error) => assert!(error.is_unreachable() && start.elapsed() >= ttl, "{ttl:?}: {error}"),
            }
        };
        let released = guard.release().await;
        // On a busy machine the shortest lease may end before the engine has confirmed the release.
        if start.elapsed() < ttl / 2 {
            released.expect("it was held");
        }
    }
}

/// Requires more replicas than there are. The engine reports that it has none, or gives the grant back.
pub(super) async fn too_few_replicas(stage: Stage) {
    let client = stage.client().await;
    let mutex = client.mutex("lock").expect("a good name");
    let first = mutex.lock().replicas(0).await.expect("none are asked for");
    let token = first.token();
    first.release().await.expect("it was held");
    for _ in 0..2 {
        let error = mutex.lock().replicas(1_000).await.expect_err("nobody has so many");
        if client.capabilities().replicas {
            assert!(error.is_unreachable() && !error.is_transient(), "{error}");
        } else {
            assert!(error.is_unsupported(), "{error}");
        }
        let error = mutex.try_lock().replicas(1_000).await.expect_err("nobody has so many");
        assert!(error.is_unreachable() || error.is_unsupported(), "{error}");
        stage.assert_free("lock").await;
    }
    let last = lock(&client, "lock", X).await.expect("it is free");
    assert!(last.token() > token || token == Token::default());
    last.release().await.expect("it was held");
}

pub(super) async fn tokens_grow(stage: Stage) {
    let mut last = Token::default();
    let mut grown = |token: Token| {
        assert!(token > last, "token {token} after {last}");
        last = token;
    };
    let lease = at_least(stage.client().await.capabilities(), SHORT);
    for round in 0..3 {
        // A new client each time: tokens grow per resource, not per client.
        let client = stage.client().await;
        let mutex = client.mutex("lock").expect("a good name");
        for _ in 0..5 {
            let guard = mutex.lock().await.expect("it is free");
            grown(guard.token());
            guard.release().await.expect("it was held");
        }
        let guard = mutex.lock().await.expect("it is free");
        grown(guard.token());
        drop(guard);
        // The lease expires while a waiter is queued.
        let guard = lock_fixed(&mutex, lease).await.expect("it is free");
        grown(guard.token());
        let next = stage.stand("lock", X).await.granted().await;
        grown(next.token());
        drop((guard, next));
        if round == 1 && client.capabilities().shared {
            let one = lock(&client, "lock", Mode::Shared).await.expect("it is free");
            let two = lock(&client, "lock", Mode::Shared).await.expect("readers read together");
            grown(one.token());
            grown(two.token());
        }
        if client.capabilities().evict {
            let guard = mutex.lock().await.expect("it is free");
            grown(guard.token());
            let how = fencepost_core::Eviction::new(true);
            evict(&client, "lock", guard.token(), &how).await.expect("it is held");
            let next = stage.stand("lock", X).await.granted().await;
            grown(next.token());
        }
    }
}

pub(super) async fn detach_and_attach(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let guard = lock(&one, "lock", X).await.expect("it is free");
    let token = guard.token();
    let lease = guard.detach().await.expect("it is held");
    assert_eq!((lease.token(), lease.name().as_str()), (token, "lock"));
    stage.assert_busy("lock").await;
    // As a secret text, as a script passes it on.
    let secret = lease.to_secret();
    assert!(!format!("{lease:?}").contains(&secret), "Debug shows the secret");
    let lease: DetachedLease = secret.parse().expect("it is a lease");
    let lease = two.extend(&lease, LONG).await.expect("it is held");
    let guard = two.attach(&lease).await.expect("it is held");
    assert_eq!(guard.token(), token, "attaching is no new grant");
    guard.ensure_held().expect("it is held");
    stage.assert_held(&guard).await;
    // Detached and attached twice, and then released.
    let lease = guard.detach().await.expect("it is held");
    stage.assert_busy("lock").await;
    one.release(&lease).await.expect("it is held");
    stage.assert_free("lock").await;
    assert!(one.release(&lease).await.expect_err("it is over").is_lost());
    assert!(one.extend(&lease, LONG).await.expect_err("it is over").is_lost());
    assert!(two.attach(&lease).await.expect_err("it is over").is_lost());
    stage.assert_free("lock").await;
}

pub(super) async fn what_is_attached_heeds_its_secret(stage: Stage) {
    let ttl = at_least(stage.client().await.capabilities(), Duration::from_secs(1));
    let clients = [stage.client().await, stage.client().await];
    for length in [LONG, ttl] {
        let mut stalls = Stalls::default();
        while stalls.spoilt(heeds_its_secret(&stage, &clients, length, ttl).await) {}
    }
}

async fn heeds_its_secret(
    stage: &Stage,
    [one, two]: &[Client; 2],
    length: Duration,
    ttl: Duration,
) -> Result<()> {
    let (_, lease) = detached(one, "lock", length).await;
    let guard = two.attach(&lease).await?;
    // A copy of the detached lease may extend it too. That shortens nothing and moves it nowhere else.
    one.extend(&lease, ttl).await?;
    let start = Instant::now();
    while start.elapsed() < 2 * ttl {
        let granted = stage.is_granted("lock").await;
        assert!(!granted || guard.ensure_held().is_err(), "two hold it after {:?}", start.elapsed());
        tokio::time::sleep(ttl / 10).await;
    }
    // It may also release it. The guard learns of that at its next renewal.
    match one.release(&lease).await {
        Ok(()) if length > ttl => {}
        Ok(()) => drop(tokio::time::timeout(SOON, guard.lost()).await.expect("it is told")),
        Err(error) => assert!(error.is_lost() && guard.ensure_held().is_err(), "{error}"),
    }
    drop(guard);
    stage.assert_free("lock").await;
    Ok(())
}

/// A service tells the id of a claim to a program that waits for it.
pub(super) async fn a_claim_that_waits_cannot_be_taken_up(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let guard = lock(&one, "lock", X).await.expect("it is free");
    let mutex = two.mutex("lock").expect("a good name");
    let id = ClaimId::from_u128(0x5eed_0000_0000_0000 | u128::from(guard.token().get()));
    let lease = DetachedLease::of(id, mutex.name().clone(), fencepost_core::Mode::Exclusive, LONG);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let waiting = tokio::spawn(async move {
        mutex.lock().claim_id(id).on_queued(move || _ = tell.send(())).wait(LONG).await
    });
    told.recv().await.expect("it waits");
    for client in [&one, &two] {
        assert!(client.attach(&lease).await.expect_err("it waits").is_lost());
        assert!(client.extend(&lease, LONG).await.expect_err("it waits").is_lost());
    }
    guard.release().await.expect("it was held");
    let granted = waiting.await.expect("waiting does not panic").expect("its turn comes");
    stage.assert_held(&granted).await;
    granted.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

/// The reader that waits behind a writer would fit beside the one that holds.
pub(super) async fn a_reader_that_waits_cannot_be_taken_up(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let holding = lock(&one, "lock", Mode::Shared).await.expect("it is free");
    let writer = stage.stand("lock", X).await;
    let lock = two.rwlock("lock").expect("a good name");
    let id = ClaimId::from_u128(0x5eed_0001_0000_0000 | u128::from(holding.token().get()));
    let lease = DetachedLease::of(id, lock.name().clone(), fencepost_core::Mode::Shared, LONG);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let waiting = tokio::spawn(async move {
        lock.read().claim_id(id).on_queued(move || _ = tell.send(())).wait(LONG).await
    });
    told.recv().await.expect("it waits");
    assert!(one.attach(&lease).await.expect_err("it waits").is_lost());
    assert!(one.extend(&lease, LONG).await.expect_err("it waits").is_lost());
    holding.release().await.expect("it was held");
    writer.granted().await.release().await.expect("it was held");
    let granted = waiting.await.expect("waiting does not panic").expect("its turn comes");
    granted.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

/// Only the claim of the guard is renewed, because an extension ends with its answer.
pub(super) async fn a_guard_whose_lease_is_extended_stays_renewed(stage: Stage) {
    let client = stage.client().await;
    let ttl = at_least(client.capabilities(), Duration::from_secs(2));
    let mut stalls = Stalls::default();
    while stalls.spoilt(stays_renewed(&stage, &client, ttl).await) {}
    stage.assert_free("lock").await;
}

async fn stays_renewed(stage: &Stage, client: &Client, ttl: Duration) -> Result<()> {
    let (_, lease) = detached(client, "lock", ttl).await;
    let guard = client.attach(&lease).await?;
    client.extend(&lease, ttl).await?;
    // Later than the extension alone could make the guard believe.
    let extended = guard.valid_until() + ttl;
    let is_renewed = || guard.valid_until() > extended || guard.ensure_held().is_err();
    stage.eventually("it is renewed", async || is_renewed()).await;
    let granted = stage.is_granted("lock").await;
    guard.ensure_held()?;
    assert!(!granted, "two hold it");
    guard.release().await
}

/// The other program has the text of the lease, and the guard was never detached.
pub(super) async fn a_guard_whose_lease_is_given_and_extended_holds(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let ttl = at_least(one.capabilities(), Duration::from_secs(2));
    let mutex = one.mutex("lock").expect("a good name");
    for _ in 0..ATTEMPTS {
        let guard = mutex.lock().ttl(ttl).await.expect("it is free");
        let lease = guard.to_lease().expect("it can be detached");
        // Not every engine extends a lease that is not detached.
        if let Err(error) = two.extend(&lease, ttl).await {
            assert!(error.is_lost(), "{error}");
        }
        // Later than the end of the extension.
        let extended = Instant::now() + ttl;
        stage
            .eventually("it is renewed past the extension", async || {
                Instant::now() > extended || guard.ensure_held().is_err()
            })
            .await;
        let granted = stage.is_granted("lock").await;
        if guard.ensure_held().is_ok() {
            assert!(!granted, "the lock was granted beside its guard");
            guard.release().await.expect("it was held");
            stage.assert_free("lock").await;
            return;
        }
    }
    panic!("the guard was lost {ATTEMPTS} times");
}

/// Both claims have the same id.
pub(super) async fn two_guards_of_one_lease_stay_renewed(stage: Stage) {
    let client = stage.client().await;
    let ttl = at_least(client.capabilities(), Duration::from_secs(2));
    for first_releases in [true, false] {
        let mut stalls = Stalls::default();
        while stalls.spoilt(both_stay_renewed(&stage, &client, ttl, first_releases).await) {}
        stage.assert_free("lock").await;
    }
}

async fn both_stay_renewed(
    stage: &Stage,
    client: &Client,
    ttl: Duration,
    first_releases: bool,
) -> Result<()> {
    let (_, lease) = detached(client, "lock", ttl).await;
    let (first, second) = tokio::join!(client.attach(&lease), client.attach(&lease));
    let (first, second) = (first?, second?);
    let renewed = first.valid_until().max(second.valid_until()) + 2 * ttl;
    let until = || first.valid_until().min(second.valid_until());
    let are_held = || first.ensure_held().and(second.ensure_held());
    stage.eventually("both are renewed", async || until() > renewed || are_held().is_err()).await;
    let granted = stage.is_granted("lock").await;
    are_held()?;
    assert!(!granted, "a third one holds it");
    let (released, told) = if first_releases { (first, second) } else { (second, first) };
    released.release().await?;
    tokio::time::timeout(SOON, told.lost()).await.expect("it is told");
    Ok(())
}

/// Somebody else was told of a longer lease, so the one that detaches the grant late leaves it that long.
pub(super) async fn a_detachment_shortens_no_lease(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let ttl = at_least(one.capabilities(), SOON);
    let mutex = one.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(ttl).await.expect("it is free");
    let lease = guard.detach().await.expect("it is held");
    let guard = two.attach(&lease).await.expect("it is held");
    one.extend(&lease, LONG).await.expect("it is held");
    let lease = guard.detach().await.expect("it is held");
    let holder = one.inspect("lock").await.expect("it is there").holders().next().cloned();
    let left = holder.expect("it is held").expires_in.expect("a detached lease has an end");
    assert!(left > LONG / 2, "it ends in {left:?}");
    two.release(&lease).await.expect("it is held");
    stage.assert_free("lock").await;
}

pub(super) async fn a_detached_lease_ends(stage: Stage) {
    let client = stage.client().await;
    let ttl = at_least(client.capabilities(), SHORT);
    let (start, lease) = detached(&client, "lock", ttl).await;
    let waiting = stage.stand("lock", X).await;
    let next = waiting.granted().await;
    assert!(start.elapsed() >= ttl, "it ended early");
    assert!(client.release(&lease).await.expect_err("it is over").is_lost());
    next.ensure_held().expect("an old lease takes nothing from its successor");
    stage.assert_busy("lock").await;
    next.release().await.expect("it was held");
}

/// No claim has acquired or inspected the lock since. The release still comes too late.
pub(super) async fn a_detached_lease_that_has_ended_cannot_be_released(stage: Stage) {
    let client = stage.client().await;
    let ttl = at_least(client.capabilities(), SHORT);
    let mut leases = Vec::new();
    for (name, ttl) in [("lock", ttl), ("clock", 2 * ttl)] {
        leases.push(detached(&client, name, ttl).await.1);
    }
    // The longer lease shows when the shorter one has expired.
    drop(stage.stand("clock", X).await.granted().await);
    let error = client.release(&leases[0]).await.expect_err("it is over");
    assert!(error.is_lost(), "{error}");
    stage.assert_free("lock").await;
}
