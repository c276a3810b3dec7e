//! Latches and barriers, and what an engine refuses.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SHORT, SOON, lock};
use crate::history::Mode;
use crate::wait::Stalls;
use fencepost_core::{Client, Eviction, Result};
use fencepost_recipes::{Barrier, Election, Latch, StripedLock};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The pause between two looks.
const OFTEN: Duration = Duration::from_millis(20);

fn latch(client: &Client, count: u32) -> Latch {
    Latch::new(client, "latch", count).expect("the engine can").every(OFTEN).keep(LONG)
}

fn barrier(client: &Client, members: u32) -> Barrier {
    Barrier::new(client, "barrier", members).expect("the engine can").every(OFTEN).keep(LONG)
}

/// Ends the detached leases of a resource, so that nothing is left.
async fn clear(client: &Client, name: &str) {
    for claim in client.inspect(name).await.expect("the engine can look").holders() {
        let token = claim.token.expect("it holds");
        client.evict(name, token, &Eviction::new(true)).await.expect("it is held");
    }
}

pub(super) async fn a_latch_opens_with_its_last_count(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let (here, there) = (latch(&one, 3), latch(&two, 3));
    let waiting = tokio::spawn({
        let latch = there.clone();
        async move { latch.wait(LONG).await }
    });
    for remaining in [3, 2, 1] {
        assert_eq!(there.remaining().await.expect("the engine can look"), remaining);
        assert!(!waiting.is_finished(), "the latch opened early");
        let error = there.wait(2 * OFTEN).await.expect_err("it is closed");
        assert!(error.is_timeout(), "{error}");
        here.count_down().await.expect("places are free");
    }
    let opened = tokio::time::timeout(SOON, waiting).await.expect("it is open").expect("it ran");
    opened.expect("it is open");
    here.count_down().await.expect("an open latch stays open");
    assert_eq!(there.remaining().await.expect("the engine can look"), 0);
    there.wait(Duration::ZERO).await.expect("one look is enough");
    // Another generation is a latch of its own.
    let next = here.generation(1);
    assert_eq!(next.remaining().await.expect("the engine can look"), 3);
    next.count_down().await.expect("places are free");
    assert_eq!(there.generation(1).remaining().await.expect("the engine can look"), 2);
    clear(&one, "latch#latch0").await;
    clear(&one, "latch#latch1").await;
    for bad in
        [Latch::new(&one, "latch", 0), Latch::new(&one, "latch", 5000), Latch::new(&one, &"x".repeat(240), 1)]
    {
        assert!(bad.expect_err("a bad count or name").is_invalid());
    }
    assert!(here.keep(Duration::ZERO).count_down().await.expect_err("a bad lease").is_invalid());
}

/// Polls a future a number of times, and drops it.
async fn cut_short<T>(polls: u32, work: impl Future<Output = Result<T>>) {
    let mut work = pin!(work);
    for _ in 0..polls {
        if let Poll::Ready(answer) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            answer.map(drop).expect("places are free");
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(super) async fn a_count_under_way_opens_nothing(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let (here, there) = (latch(&one, 2), latch(&two, 2));
    here.count_down().await.expect("places are free");
    // The other place is of a call that has not counted yet.
    let place = one.semaphore("latch#latch0", 2).expect("a good name").acquire().await.expect("one is free");
    assert_eq!(there.remaining().await.expect("the engine can look"), 1, "it opened early");
    let counting = tokio::spawn({
        let latch = there.clone();
        async move { latch.count_down().await }
    });
    tokio::time::sleep(3 * OFTEN).await;
    assert!(!counting.is_finished(), "there was no place");
    // That call was cancelled.
    drop(place);
    let counted = tokio::time::timeout(SOON, counting).await.expect("the place is free").expect("it ran");
    counted.expect("the place is free");
    there.wait(Duration::ZERO).await.expect("it is open");
    clear(&one, "latch#latch0").await;
    // Calls that are dropped anywhere have counted or not, and leave no place taken.
    let many = latch(&one, 20);
    for polls in 0..6 {
        cut_short(polls, many.count_down()).await;
    }
    let settled = || async {
        let info = two.inspect("latch#latch0").await.expect("the engine can look");
        info.claims.iter().all(|claim| claim.detached)
    };
    stage.eventually("what was dropped is given back", settled).await;
    let remaining = many.remaining().await.expect("the engine can look");
    assert!((14..=20).contains(&remaining), "{remaining}");
    for _ in 0..remaining {
        many.count_down().await.expect("places are free");
    }
    many.wait(Duration::ZERO).await.expect("it is open");
    clear(&one, "latch#latch0").await;
}

pub(super) async fn members_enter_and_leave_together(stage: Stage) {
    let mut barriers = Vec::new();
    for _ in 0..3 {
        barriers.push(barrier(&stage.client().await, 3));
    }
    let look = stage.client().await;
    let enter = |barrier: &Barrier| {
        let barrier = barrier.clone();
        tokio::spawn(async move { barrier.enter(LONG).await })
    };
    let count = |expected: usize| {
        let look = look.clone();
        move || {
            let look = look.clone();
            async move {
                let info = look.inspect("barrier#barrier0").await.expect("the engine can look");
                info.holders().count() == expected
            }
        }
    };
    let mut first = vec![enter(&barriers[0])];
    stage.eventually("one is inside", count(1)).await;
    let error = barrier(&look, 3).enter(Duration::ZERO).await.map(drop).expect_err("one is missing");
    assert!(error.is_timeout(), "{error}");
    stage.eventually("the second one is outside again", count(1)).await;
    first.push(enter(&barriers[1]));
    stage.eventually("two are inside", count(2)).await;
    tokio::time::sleep(3 * OFTEN).await;
    assert!(!first.iter().any(|member| member.is_finished()), "a member was let in early");
    let mut inside = vec![barriers[2].enter(SOON).await.expect("all are here")];
    for member in first {
        let member = tokio::time::timeout(SOON, member).await.expect("all are here").expect("it ran");
        inside.push(member.expect("all are here"));
    }
    for member in &inside {
        member.guard().ensure_held().expect("it is inside");
    }
    let error = barrier(&look, 3).enter(SOON).await.map(drop).expect_err("one too many");
    assert!(error.is_mismatch(), "{error}");
    let last = inside.pop().expect("there are three");
    let leaving: Vec<_> =
        inside.into_iter().map(|member| tokio::spawn(async move { member.leave(LONG).await })).collect();
    stage.eventually("one is inside", count(1)).await;
    tokio::time::sleep(3 * OFTEN).await;
    assert!(!leaving.iter().any(|member| member.is_finished()), "a member was let go early");
    last.leave(SOON).await.expect("all leave");
    for member in leaving {
        let left = tokio::time::timeout(SOON, member).await.expect("all leave").expect("it ran");
        left.expect("all leave");
    }
    // The generation is over; the next one is a barrier of its own.
    let error = barriers[0].enter(SOON).await.map(drop).expect_err("it was used");
    assert!(error.is_mismatch(), "{error}");
    let alone = Barrier::new(&look, "barrier", 1).expect("the engine can").keep(LONG).generation(1);
    alone.enter(SOON).await.expect("it is alone").leave(SOON).await.expect("it is alone");
    clear(&look, "barrier#barrier0.open").await;
    clear(&look, "barrier#barrier1.open").await;
}

pub(super) async fn a_dead_member_holds_nobody_up(stage: Stage) {
    let client = stage.client().await;
    // Long enough to enter on a slow machine.
    let ttl = (5 * SHORT).max(client.capabilities().min_ttl);
    let barriers = [barrier(&client, 2), barrier(&stage.deaf(ttl).await, 2)];
    let limit = stage.crash_bound(ttl) + SOON;
    let (mut stalls, mut generation) = (Stalls::default(), 0);
    while stalls.spoilt(one_dies(barriers.each_ref().map(|one| one.generation(generation)), limit).await) {
        generation += 1;
    }
    for generation in 0..=generation {
        clear(&client, &format!("barrier#barrier{generation}.open")).await;
    }
}

/// On a machine that stalls the dead one may be lost before it has entered. The other one does not enter then, or leaves alone.
async fn one_dies([living, dead]: [Barrier; 2], limit: Duration) -> Result<()> {
    let (living, dead) = tokio::join!(living.enter(SOON), dead.enter(SOON));
    let dead = dead?;
    living.expect("all are here").leave(limit).await.expect("the dead one's lease ends");
    let error = dead.leave(SOON).await.expect_err("its lease has ended");
    assert!(error.is_lost(), "{error}");
    Ok(())
}

async fn set_permits(client: &Client) -> Result<()> {
    let semaphore = client.semaphore("x", 2)?;
    semaphore.set_permits(3).await?;
    semaphore.reset_permits().await
}

/// The page of the library has a table of the primitives and the engines. Each suite checks the row of its engine there.
pub(super) async fn what_the_engine_cannot_do_is_refused(stage: Stage) {
    let client = stage.client().await;
    let can = client.capabilities().clone();
    let gathers = can.permits && can.detach && can.inspect;
    let tokens = can.tokens != fencepost_core::Tokens::None;
    let check = |what: &str, can: bool, made: Result<()>| match made {
        Ok(()) => {
            assert!(can, "{what}: the engine lacks what it needs");
            "yes"
        }
        Err(error) => {
            assert!(!can && error.is_unsupported(), "{what}: {error}");
            "no"
        }
    };
    let mut row = vec![
        check("mutex", true, client.mutex("x").map(drop)),
        check("rwlock", can.shared, client.rwlock("x").map(drop)),
        check("semaphore", can.permits, client.semaphore("x", 2).map(drop)),
        check("multi", true, client.multi(["x", "y"]).map(drop)),
        check("striped", true, StripedLock::new(&client, "x", 2).map(drop)),
        check("latch", gathers, Latch::new(&client, "x", 2).map(drop)),
        check("barrier", gathers && tokens, Barrier::new(&client, "x", 2).map(drop)),
        check("election", can.inspect && tokens, Election::new(&client, "x").map(drop)),
        check("once", can.history && can.inspect, client.once("x", LONG).map(drop)),
        check("set_permits", can.stored_permits, set_permits(&client).await),
        check("unfair", can.barging, client.mutex("x").expect("a good name").lock().unfair().await.map(drop)),
    ];
    let mut upgrade = "no";
    if can.shared {
        let mut guard = lock(&client, "read", Mode::Shared).await.expect("it is free");
        upgrade = check("upgrade", can.upgrade, guard.upgrade().await);
        check("downgrade", can.upgrade, guard.downgrade().await);
        guard.ensure_held().expect("it is held all the same");
        guard.release().await.expect("it was held");
    }
    row.insert(2, upgrade);
    if let Some(name) = stage.page_row() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/library.md");
        let text = std::fs::read_to_string(page).expect("the page of the library is in the tree");
        let row = format!("| {name} | {} |", row.join(" | "));
        assert!(
            text.lines().any(|line| line == row),
            "docs/library.md lacks this row of its table of engines:\n{row}"
        );
    }
}
