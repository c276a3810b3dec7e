//! Firings, elections and segments.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SHORT, SOON};
use fencepost_core::sync::Mutex;
use fencepost_core::{Client, Firing, Guard, Run, Token};
use fencepost_recipes::{Election, Leaders, StripedLock};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than a case.
const WINDOW: Duration = Duration::from_secs(3600);

fn first(firing: Firing) -> Guard {
    match firing {
        Firing::First(guard) => guard,
        other => panic!("it has not run yet: {other:?}"),
    }
}

fn already(firing: Firing) -> Run {
    match firing {
        Firing::Already(run) => run,
        other => panic!("it has run: {other:?}"),
    }
}

pub(super) async fn a_firing_runs_once(stage: Stage) {
    let mut hosts = Vec::new();
    for _ in 0..5 {
        // The command's clients keep all runs. A skipped start is none of them.
        let client = stage.keeper("host").await;
        hosts.push(tokio::spawn(async move {
            let once = client.once("job", WINDOW).expect("a good name");
            match once.begin().wait(LONG).await.expect("the engine answers") {
                Firing::First(guard) => {
                    tokio::task::yield_now().await;
                    guard.report(0);
                    let token = guard.token();
                    guard.release().await.expect("it was held");
                    Ok(token)
                }
                Firing::Already(run) => Err(run.token),
            }
        }));
    }
    let (mut ran, mut skipped) = (Vec::new(), Vec::new());
    for host in hosts {
        match host.await.expect("it ran") {
            Ok(token) => ran.push(token),
            Err(token) => skipped.push(token),
        }
    }
    assert_eq!(ran.len(), 1, "it ran {} times", ran.len());
    assert_eq!(skipped, vec![ran[0]; 4], "each sees the run of the firing");
    let client = stage.client().await;
    let runs = client.inspect("job").await.expect("the engine can look").runs.expect("it keeps runs");
    assert_eq!(runs.last.map(|run| run.token), Some(ran[0]), "a skipped start is no run");
    // The next firing: all of the last window is over.
    let next = client.once("job", Duration::from_micros(1)).expect("a good name");
    let guard = first(next.try_begin().await.expect("the engine answers").expect("it is free"));
    let other = stage.client().await.once("job", WINDOW).expect("a good name");
    assert!(
        !matches!(other.try_begin().await.expect("busy is no error"), Some(Firing::First(_))),
        "two run it"
    );
    guard.report(0);
    guard.release().await.expect("it was held");
    already(other.try_begin().await.expect("the engine answers").expect("it is free"));
    let error = client.once("job", Duration::ZERO).expect_err("a window of nothing");
    assert!(error.is_invalid(), "{error}");
}

pub(super) async fn a_failed_firing_runs_again_where_that_is_asked_for(stage: Stage) {
    let client = stage.client().await;
    let once = client.once("job", WINDOW).expect("a good name");
    // The first fails, the second dies without a report, the third ends well.
    for report in [Some(1), None, Some(0)] {
        let guard = first(once.clone().retry().begin().wait(SOON).await.expect("the engine answers"));
        if let Some(code) = report {
            guard.report(code);
        }
        guard.release().await.expect("it was held");
        let run = already(once.begin().wait(SOON).await.expect("the engine answers"));
        assert_eq!((run.is_good(), run.exit_code), (report == Some(0), report), "{run:?}");
    }
    already(once.clone().retry().try_begin().await.expect("the engine answers").expect("it is free"));
}

/// The run is longer than the window. The start that waited for it is still one of its firing.
pub(super) async fn a_start_counts_from_when_it_asked(stage: Stage) {
    let (one, two) = (stage.client().await, stage.keeper("second").await);
    let mut window = 2 * SHORT;
    // On a busy machine the second start may ask too late for this firing. Then the next round has a longer window.
    while !is_one_of_its_firing(&stage, &one, &two, window).await {
        window *= 2;
    }
}

/// Runs a firing, and starts it again from `two` meanwhile. Returns `false` if the second start may have asked too late.
async fn is_one_of_its_firing(stage: &Stage, one: &Client, two: &Client, window: Duration) -> bool {
    let name = format!("job of {window:?}");
    let once = |client: &Client| client.once(&name, window).expect("a good name");
    let began = Instant::now();
    let guard = first(once(one).try_begin().await.expect("it answers").expect("it is free"));
    let start = once(two);
    let waiting = tokio::spawn(async move { start.begin().wait(LONG).await });
    let waits = || async { two.inspect(&name).await.expect("the engine can look").waiters().count() > 0 };
    stage.eventually("it waits for the run", waits).await;
    let in_time = began.elapsed() < window / 2;
    if in_time {
        tokio::time::sleep(window).await;
    }
    guard.report(0);
    let token = guard.token();
    guard.release().await.expect("it was held");
    let firing = tokio::time::timeout(SOON, waiting).await.expect("it is free").expect("it ran");
    let firing = firing.expect("the engine answers");
    if !in_time {
        drop(firing);
        return false;
    }
    assert_eq!(already(firing).token, token);
    let runs = two.inspect(&name).await.expect("the engine can look").runs.expect("it keeps runs");
    assert_eq!(runs.last.map(|run| run.token), Some(token), "a skipped start is no run");
    true
}

pub(super) async fn one_leader_that_all_see(stage: Stage) {
    let (one, two, look) = (stage.client().await, stage.client().await, stage.client().await);
    let election = Election::new(&look, "leader").expect("a good name");
    let mut leaders = election.observe(Duration::from_millis(20));
    assert_eq!(leaders.next().await.expect("the engine can look"), None);
    let first = Election::new(&one, "leader").expect("a good name");
    let first = first.campaign().reason("first:1").await.expect("it is free");
    let seen = seen_leader(&mut leaders, first.token()).await;
    assert_eq!(seen.as_deref(), Some("first:1"));
    let candidate = Election::new(&two, "leader").expect("a good name");
    let second = tokio::spawn(async move { candidate.campaign().reason("second:2").wait(LONG).await });
    let waits = || async { look.inspect("leader").await.expect("the engine can look").waiters().count() > 0 };
    stage.eventually("the second candidate waits", waits).await;
    first.ensure_held().expect("one leads");
    let term = first.token();
    first.release().await.expect("it led");
    let second = tokio::time::timeout(SOON, second).await.expect("it is its turn").expect("it ran");
    let second = second.expect("it is its turn");
    assert!(second.token() > term, "two leaders of a term");
    let seen = seen_leader(&mut leaders, second.token()).await;
    assert_eq!(seen.as_deref(), Some("second:2"));
    second.release().await.expect("it led");
    assert_eq!(election.leader().await.expect("the engine can look"), None);
}

/// Returns the value of the leader of this term. A process that stalls may not say whether it leads.
async fn seen_leader(leaders: &mut Leaders<'_>, term: Token) -> Option<String> {
    let next = async {
        loop {
            if let Some(leader) = leaders.next().await.expect("the engine can look")
                && leader.term == term
            {
                return leader.value;
            }
        }
    };
    tokio::time::timeout(SOON, next).await.expect("it is seen")
}

/// Sells until all segments are empty, and returns how many pieces.
async fn sell(client: Client, stock: Arc<[Mutex<u32>]>) -> u32 {
    let striped = StripedLock::new(&client, "stock", stock.len() as u32).expect("a good name");
    let mut sold = 0;
    'pieces: loop {
        let mut walk = striped.free_first();
        while let Some((segment, guard)) = walk.next().await.expect("the engine answers") {
            // Read, then written: two that sell from one segment would sell a piece twice.
            let left = *stock[segment].lock();
            tokio::task::yield_now().await;
            if left > 0 {
                *stock[segment].lock() = left - 1;
                sold += 1;
            }
            guard.release().await.expect("it was held");
            if left > 0 {
                continue 'pieces;
            }
        }
        return sold;
    }
}

pub(super) async fn segments_sell_each_piece_once(stage: Stage) {
    let stock: Arc<[Mutex<u32>]> = (0..4).map(|_| Mutex::new(5)).collect();
    let mut buyers = Vec::new();
    for _ in 0..3 {
        let client = stage.client().await;
        for _ in 0..2 {
            buyers.push(tokio::spawn(sell(client.clone(), Arc::clone(&stock))));
        }
    }
    let mut sold = 0;
    for buyer in buyers {
        sold += buyer.await.expect("it ran");
    }
    assert_eq!(sold, 20, "pieces were sold twice, or not at all");
}

pub(super) async fn a_walk_comes_back_to_what_was_busy(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let striped = StripedLock::new(&one, "stock", 3).expect("a good name");
    let busy = striped.segments()[1].lock().await.expect("it is free");
    let lock = StripedLock::new(&two, "stock", 3).expect("a good name");
    let other = lock.segments()[0].try_lock().await.expect("the engine answers");
    other.expect("each segment has a lock of its own").release().await.expect("it was held");
    let mut walk = lock.free_first();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (number, guard) = walk.next().await.expect("the engine answers").expect("two are free");
        seen.push(number);
        guard.release().await.expect("it was held");
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 2]);
    assert!(tokio::time::timeout(Duration::from_millis(100), walk.next()).await.is_err(), "it is busy");
    busy.release().await.expect("it was held");
    let last = tokio::time::timeout(SOON, walk.next()).await.expect("it is free");
    let (number, guard) = last.expect("the engine answers").expect("it was busy before");
    assert_eq!((number, guard.name().as_str()), (1, "stock#1"));
    guard.release().await.expect("it was held");
    assert!(walk.next().await.expect("all were there").is_none());
    assert_eq!((lock.usage().granted, lock.usage().busy), (3, 1));
    // Several at once, in the order that all keep.
    let pair = lock.several([2, 0]).expect("good numbers").lock().await.expect("they are free");
    stage.assert_busy("stock#0").await;
    stage.assert_free("stock#1").await;
    pair.release().await.expect("they were held");
    assert!(lock.several([3]).expect_err("there are three").is_invalid());
    assert!(StripedLock::new(&one, "stock", 0).expect_err("there is none").is_invalid());
    assert!(StripedLock::new(&one, &"x".repeat(255), 2).expect_err("no room for the number").is_invalid());
}
