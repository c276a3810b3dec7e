//! A server that fails and recovers, and a network that is silent or slow.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SOON, lock};
use crate::faults::Faults;
use crate::history::Mode;
use crate::wait::Stalls;
use fencepost_core::{Client, Info, Moment, Result, State};
use std::time::{Duration, Instant};

const X: Mode = Mode::Exclusive;

pub(super) async fn server_killed_and_restarted(stage: Stage) {
    let mut faults = stage.faults().expect("the engine has hooks");
    let ttl = Duration::from_secs(2).max(stage.client().await.capabilities().min_ttl);
    let client = stage.client_of(ttl).await;
    for _ in 0..2 {
        let guard = lock(&client, "lock", X).await.expect("it is free");
        let waiting = stage.stand("lock", X).await;
        faults.kill().expect("the server can be killed");
        faults.restart().expect("the server comes back");
        // If the grant outlived the server, it is renewed past its lease. If not, its holder knows.
        let past = Instant::now() + ttl + ttl / 2;
        while Instant::now() < past && guard.ensure_held().is_ok() {
            assert!(!waiting.is_answered() || guard.ensure_held().is_err(), "it was granted twice");
            tokio::time::sleep(ttl / 50).await;
        }
        let token = guard.token();
        // It may return that the lock was lost.
        drop(guard.release().await);
        let next = tokio::time::timeout(LONG.min(ttl + SOON), waiting.granted_at_last()).await;
        let next = next.expect("the waiter is granted the lock by the recovered server");
        assert!(next.token() > token || token == fencepost_core::Token::default());
        next.release().await.expect("it was held");
        stage.assert_free("lock").await;
    }
}

pub(super) async fn network_goes_dark(stage: Stage) {
    let mut faults = stage.faults().expect("the engine has hooks");
    let ttl = Duration::from_secs(1).max(stage.client().await.capabilities().min_ttl);
    let client = stage.hasty(ttl).await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let token = guard.token();
    // Nothing is refused and no connection is closed: only the clock shows the loss.
    faults.silence().expect("the network can go dark");
    let wait = Duration::from_millis(300);
    let start = Instant::now();
    let mutex = client.mutex("another").expect("a good name");
    let error = mutex.lock().wait(wait).await.expect_err("nothing is answered");
    assert!(error.is_unreachable() || error.is_timeout(), "{error}");
    assert!(start.elapsed() >= wait && start.elapsed() < wait + SOON, "it waited {:?}", start.elapsed());
    tokio::time::timeout(ttl + SOON, guard.lost()).await.expect("the holder is told");
    assert!(guard.ensure_held().expect_err("it is lost").is_lost());
    drop(guard);
    // Requests that the silent network held back may arrive now, long after their sender gave up. They must
    // leave nothing.
    faults.mend().expect("the network can be mended");
    for name in ["lock", "another"] {
        stage.assert_free(name).await;
    }
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(LONG).await.expect("it is free");
    assert!(guard.token() > token || token == fencepost_core::Token::default());
    guard.release().await.expect("it was held");
}

pub(super) async fn network_is_dark_within_a_lease(stage: Stage) {
    let mut faults = stage.faults().expect("the engine has hooks");
    let client = stage.client().await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let waiting = stage.stand("lock", X).await;
    faults.silence().expect("the network can go dark");
    // Longer than the lease of a waiter that is renewed each second, and much shorter than the lock's.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    guard.ensure_held().expect("its lease goes on");
    faults.mend().expect("the network can be mended");
    guard.release().await.expect("it was held");
    let next = tokio::time::timeout(SOON + SOON, waiting.granted_at_last()).await;
    next.expect("the waiter is granted the lock in the end").release().await.expect("it was held");
    stage.assert_free("lock").await;
}

pub(super) async fn network_gets_slow(stage: Stage) {
    let mut faults = stage.faults().expect("the engine has hooks");
    // Long enough for a busy machine, which may stall for a second. If it stalls for longer, the scene is played again.
    let ttl = Duration::from_secs(5).max(stage.client().await.capabilities().min_ttl);
    let client = stage.client_of(ttl).await;
    let mut stalls = Stalls::default();
    while stalls.spoilt(is_renewed_slowly(&stage, &mut *faults, &client, ttl).await) {}
    stage.assert_free("lock").await;
}

async fn is_renewed_slowly(
    stage: &Stage,
    faults: &mut dyn Faults,
    client: &Client,
    ttl: Duration,
) -> Result<()> {
    let guard = lock(client, "lock", X).await?;
    let waiting = stage.stand("lock", X).await;
    faults.delay(Duration::from_millis(100)).expect("the network can be slow");
    // Its renewals are slow, and still in time.
    let past = Instant::now() + ttl + ttl / 2;
    let mut held = Ok(());
    while Instant::now() < past && held.is_ok() {
        let answered = waiting.is_answered();
        held = guard.ensure_held();
        assert!(!answered || held.is_err(), "it was granted twice");
        tokio::time::sleep(ttl / 20).await;
    }
    let released = guard.release().await;
    let next = tokio::time::timeout(ttl + SOON, waiting.granted_at_last()).await.expect("it is its turn");
    faults.mend().expect("the network can be mended");
    next.release().await.expect("it was held");
    held.and(released)
}

/// A guard is lost at the end of its lease, also where a session or another lease of its client lives longer. What the server has of the
/// lost claim then holds up nobody, although the guard is kept.
pub(super) async fn a_lease_ends_behind_a_cut(stage: Stage) {
    let mut faults = stage.faults().expect("the engine has hooks");
    // No whole number of seconds. The leases of two other locks end a little later, so what keeps them alive may keep the first one.
    let ttl = Duration::from_millis(2_500).max(stage.client().await.capabilities().min_ttl);
    // What a silent network held back may arrive as soon as the lease has expired. After a cut longer than the lease, the client connects again.
    for (silence, more) in [(true, Duration::ZERO), (false, ttl)] {
        let mut stalls = Stalls::default();
        while stalls.spoilt(ends_behind_a_cut(&stage, &mut *faults, ttl, silence, more).await) {}
        stage.assert_free("beside").await;
        stage.assert_free("late").await;
    }
}

async fn ends_behind_a_cut(
    stage: &Stage,
    faults: &mut dyn Faults,
    ttl: Duration,
    silence: bool,
    more: Duration,
) -> Result<()> {
    let client = stage.client_of(ttl).await;
    let mutex = client.mutex("beside").expect("a good name");
    let beside = mutex.lock().ttl(ttl + ttl / 5).await?;
    let guard = lock(&client, "lock", X).await?;
    let first = guard.valid_until();
    let is_lost = || guard.ensure_held().is_err();
    stage.eventually("it is renewed", || async { guard.valid_until() > first || is_lost() }).await;
    stage.eventually("it is soon renewed again", || async { guard.remaining() < ttl * 4 / 5 }).await;
    let late = lock(&client, "late", X).await?;
    guard.ensure_held()?;
    if silence { faults.silence() } else { faults.cut() }.expect("the network can be troubled");
    // All that was confirmed was sent before this.
    let end = tokio::time::Instant::now() + ttl;
    let lost = tokio::time::timeout_at(end, guard.lost()).await;
    tokio::time::sleep_until(end).await;
    let (state, remaining) = (guard.state(), guard.remaining());
    assert!(matches!(state, State::Lost(_)), "after a cut of {ttl:?} it is {state:?} for {remaining:?}");
    lost.expect("the holder is told before the end of its lease");
    assert_eq!((remaining, guard.valid_until()), (Duration::ZERO, Moment::ZERO));
    assert!(guard.ensure_held().expect_err("it is lost").is_lost());
    tokio::time::sleep(more).await;
    faults.mend().expect("the network can be mended");
    // All guards are kept. What is left of their client goes on renewing.
    let next = tokio::time::timeout(SOON, stage.stand("lock", X).await.granted_at_last()).await;
    let next = next.expect("a lost guard that is kept holds up nobody");
    assert!(guard.ensure_held().expect_err("nothing revives it").is_lost());
    if client.capabilities().inspect {
        let holders = |info: &Info| info.holders().filter_map(|claim| claim.token).collect::<Vec<_>>();
        let info = stage.look(&client, "lock", |info| holders(info) == [next.token()]).await;
        assert_eq!(holders(&info), [next.token()], "only the next one is seen to hold");
    }
    next.release().await.expect("it was held");
    drop((guard, beside, late));
    Ok(())
}

/// A server that accepts no new connection renews the locks of clients that have theirs: the renewal needs nothing that its client does
/// not have at the grant.
pub(super) async fn a_full_server_ends_no_lock(stage: Stage) {
    let mut faults = stage.faults().expect("the engine has hooks");
    let ttl = Duration::from_secs(6).max(stage.client().await.capabilities().min_ttl);
    // Each scene has fresh clients. A renewal that needs a new connection fails in all of them.
    let mut stalls = Stalls::default();
    while stalls.spoilt(are_renewed_at_a_full_server(&stage, &mut *faults, ttl).await) {}
}

async fn are_renewed_at_a_full_server(stage: &Stage, faults: &mut dyn Faults, ttl: Duration) -> Result<()> {
    // The first grant of a client, and one that was waited for.
    let first = stage.client_of(ttl).await;
    let guard = lock(&first, "first", X).await?;
    let holder = lock(&stage.client().await, "second", X).await?;
    let waiting = stage.stand_of(stage.client_of(ttl).await, "second", X).await;
    holder.release().await?;
    let waited = waiting.granted().await;
    let attached = match first.capabilities().detach {
        true => {
            let detached = lock(&first, "third", X).await?.detach().await?;
            Some(stage.client_of(ttl).await.attach(&detached).await?)
        }
        false => None,
    };
    let guards: Vec<_> = [Some(guard), Some(waited), attached].into_iter().flatten().collect();
    let are_held = || guards.iter().try_for_each(|guard| guard.ensure_held());
    are_held()?;
    faults.refuse().expect("new connections can be refused");
    // Several renewals.
    let past = Instant::now() + ttl + ttl / 2;
    while Instant::now() < past && are_held().is_ok() {
        tokio::time::sleep(ttl / 50).await;
    }
    let held = are_held();
    faults.mend().expect("connections are accepted again");
    held?;
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

async fn detach(client: &Client, name: &str, mode: Mode) -> Result<()> {
    lock(client, name, mode).await?.detach().await.map(drop)
}

/// An end that was written before the wall clock was set back is far away. It keeps no lock for longer than a lease.
pub(super) async fn a_clock_set_back_keeps_no_dead_holder(stage: Stage) {
    let mut faults = stage.faults().expect("the engine has hooks");
    let ttl = Duration::from_secs(2).max(stage.client().await.capabilities().min_ttl);
    let client = stage.client_of(ttl).await;
    let mut dead = stage.elsewhere("dead", ttl).expect("another process");
    let alive = lock(&client, "alive", X).await.expect("it is free");
    let mut names = vec!["dead"];
    if client.capabilities().detach {
        let mut stalls = Stalls::default();
        while stalls.spoilt(detach(&client, "detached", X).await) {}
        names.push("detached");
        if client.capabilities().shared {
            let mut stalls = Stalls::default();
            while stalls.spoilt(detach(&client, "read", Mode::Shared).await) {}
            names.push("read");
        }
    }
    dead.kill();
    faults.jump(-3_600).expect("the clock can be set back");
    for name in &names {
        for holder in client.inspect(name).await.expect("it answers").holders() {
            let left = holder.expires_in.unwrap_or_default();
            assert!(left <= ttl, "`{name}` is shown as held for {left:?}");
        }
    }
    let listing = client.list("", &fencepost_core::Page::default()).await.expect("it answers");
    let mut holders = listing.resources.iter().flat_map(|info| info.holders());
    assert!(holders.all(|holder| holder.expires_in.unwrap_or_default() <= ttl), "{listing:?}");
    let after = stage.client_of(ttl).await;
    for name in names {
        let next = tokio::time::timeout(ttl + SOON, lock(&after, name, X)).await;
        // On a machine that stalls so short a lease may end before the release.
        drop(next.expect("its holder is dead").expect("waiting is no error").release().await);
    }
    // One that renews its lease keeps it, or is told.
    let past = Instant::now() + 2 * ttl;
    while Instant::now() < past {
        assert!(!stage.is_granted("alive").await || alive.ensure_held().is_err(), "two hold it");
        tokio::time::sleep(ttl / 10).await;
    }
    // It may return that the lock was lost.
    drop(alive.release().await);
}
