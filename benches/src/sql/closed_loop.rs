//! Handoffs: tasks of several processes lock, release and lock again, beside the server's queue.

use super::{ByHand, Sql, Stage, Way};
use crate::client::{NAME, connect, runtime};
use crate::command::Wrapper;
use crate::crowd::PROCESSES;
use crate::figure::{Figure, Measured, Named, median};
use crate::handoff::{self, LINES};
use crate::side::{program, run, words};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a loop runs.
const SPAN: Duration = Duration::from_secs(3);
/// How long it runs before that: in this time the queue forms.
const BEFORE: Duration = Duration::from_secs(1);
/// How often each way has its turn.
const ROUNDS: usize = 3;
/// The key of the floor.
const KEY: usize = 7;

/// Handoffs per second with so many tasks, beside as many connections that wait in the server's queue.
pub(super) fn rate<S: Sql>(stage: &Stage<S>, waiters: usize) -> Figure {
    let (hand, ours, ratio, _) = measure(stage, waiters);
    let figure = handoff::name(waiters, PROCESSES);
    let floor = Named { name: "the server's queue", value: hand };
    let peers = Vec::new();
    Figure { engine: S::ENGINE, figure, unit: "1/s", floor, ours, ratio, bar: "≥ 0.4 ×", peers }
}

/// The rate with 1,000 waiters as a part of that with 16.
pub(super) fn steady<S: Sql>(stage: impl Fn() -> Stage<S>) -> Measured {
    let (few, many) = (measure(&stage(), 16).1, measure(&stage(), 1_000).1);
    Measured { figure: many / few, note: format!("{few:.0} handoffs a second with 16, {many:.0} with 1,000") }
}

/// The longest wait as a multiple of the mean, at worst.
pub(super) fn longest<S: Sql>(stage: impl Fn() -> Stage<S>) -> Measured {
    let figures = LINES.map(|waiters| (waiters, measure(&stage(), waiters).3));
    let notes: Vec<_> =
        figures.iter().map(|(waiters, longest)| format!("{waiters} waiters: {longest:.2}")).collect();
    let worst = figures.iter().map(|(_, longest)| *longest).fold(0.0, f64::max);
    Measured { figure: worst, note: notes.join("; ") }
}

/// The floor's rate, ours, the ratio, and the longest wait beside the mean.
fn measure<S: Sql>(stage: &Stage<S>, waiters: usize) -> (f64, f64, f64, f64) {
    // The engine makes its table.
    runtime().block_on(async { connect(&stage.url()).await.close().await });
    let (mut hands, mut ours, mut ratios, mut longest) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (hand, _) = turn::<S>("side-queue", &stage.bare_url(), waiters);
        let (own, wait) = turn::<S>("side-loop", &stage.url(), waiters);
        hands.push(hand);
        ours.push(own);
        ratios.push(own / hand);
        longest.push(wait);
    }
    (median(hands), median(ours), median(ratios), median(longest))
}

/// Lets processes run the loop. Returns their grants per second together, and the longest wait beside the mean.
fn turn<S: Sql>(side: &str, url: &str, waiters: usize) -> (f64, f64) {
    let tasks = (waiters / PROCESSES).to_string();
    let mut sides: Vec<Wrapper> = (0..PROCESSES)
        .map(|_| {
            let mut command = program(&[S::ENGINE, side, url, &tasks]);
            command.stdin(Stdio::piped());
            Wrapper::start(command)
        })
        .collect();
    for side in &mut sides {
        assert_eq!(side.line(), "ready");
    }
    sides.iter_mut().for_each(|side| side.say("go"));
    let (mut grants, mut waited, mut longest) = (0.0, 0.0, 0.0f64);
    for side in &mut sides {
        let line = side.line();
        let numbers: Vec<f64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        grants += numbers[0];
        waited += numbers[1];
        longest = longest.max(numbers[2]);
    }
    (grants / SPAN.as_secs_f64(), longest / (waited / grants))
}

/// One process with fencepost's lock.
pub(super) fn side(url: &str, tasks: usize) {
    run(async {
        let locks = connect(url).await;
        let lock = locks.mutex(NAME).expect("a good name");
        println!("ready");
        words().recv().await;
        let turns = (0..tasks).map(|_| {
            let lock = lock.clone();
            tokio::spawn(loops(move || {
                let lock = lock.clone();
                async move {
                    let asked = Instant::now();
                    let guard = lock.lock().await.expect("its turn comes");
                    let waited = asked.elapsed();
                    guard.release().await.expect("it is held");
                    waited
                }
            }))
        });
        report(turns.collect()).await;
        locks.close().await;
    });
}

/// One process with a connection for each waiter.
pub(super) fn queue<S: Sql>(url: &str, tasks: usize) {
    run(async {
        let mut hands = Vec::new();
        for _ in 0..tasks {
            hands.push(Arc::new(S::Hand::connect(url, Way::Session).await));
        }
        println!("ready");
        words().recv().await;
        let turns = hands.into_iter().map(|hand| {
            tokio::spawn(loops(move || {
                let hand = Arc::clone(&hand);
                async move {
                    let asked = Instant::now();
                    hand.lock(KEY).await;
                    let waited = asked.elapsed();
                    hand.release(KEY).await;
                    waited
                }
            }))
        });
        report(turns.collect()).await;
    });
}

/// The result of a task: grants, the sum of its waits and the longest one, in seconds.
type Had = (u64, f64, f64);

async fn loops<F: Future<Output = Duration>>(mut cycle: impl FnMut() -> F) -> Had {
    let began = Instant::now();
    let mut had = (0, 0.0, 0.0);
    while began.elapsed() < BEFORE + SPAN {
        let waited = cycle().await.as_secs_f64();
        let at = began.elapsed();
        if at > BEFORE && at <= BEFORE + SPAN {
            had = (had.0 + 1, had.1 + waited, f64::max(had.2, waited));
        }
    }
    had
}

async fn report(turns: Vec<tokio::task::JoinHandle<Had>>) {
    let mut all: Had = (0, 0.0, 0.0);
    for turn in turns {
        let had = turn.await.expect("a task that does not panic");
        all = (all.0 + had.0, all.1 + had.1, all.2.max(had.2));
    }
    println!("{} {} {}", all.0, all.1, all.2);
}
