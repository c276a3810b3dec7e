//! A hundred thousand waiters on one lock, and a hundred thousand locks held with renewal, in one process.

use super::connect;
use crate::client::runtime;
use crate::figure::Measured;
use crate::usage::{resident, share};
use fencepost::{Guard, Locks};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::JoinSet;

const CROWD: usize = 100_000;
/// Long enough for three rounds of renewal.
const SPAN: Duration = Duration::from_secs(40);
/// Handoffs over which wakeups are counted.
const HANDOFFS: usize = 1_000;

/// The quantity that is measured of the crowd.
#[derive(Clone, Copy)]
pub(crate) enum Question {
    /// Bytes of memory for each.
    Memory,
    /// Percent of a core while nothing happens.
    Idle,
    /// Polls of waiting futures for each release.
    Wakeups,
}

/// `Memory`, `Idle` or `Wakeups` of waiters in one line.
pub(crate) fn waiters(question: Question) -> Measured {
    run(async move {
        let locks = connect().await;
        let lock = locks.mutex("crowded").expect("a good name");
        let holder = lock.lock().await.expect("memory grants");
        let polls = Arc::new(AtomicUsize::new(0));
        let before = resident();
        let mut tasks: JoinSet<Guard> = JoinSet::new();
        for _ in 0..CROWD {
            let lock = lock.clone();
            let waiting = async move { lock.lock().await.expect("memory grants") };
            tasks.spawn(Counted { polls: Arc::clone(&polls), work: Box::pin(waiting) });
        }
        // A waiter's first poll puts it in the queue.
        while polls.load(Ordering::SeqCst) < CROWD {
            tokio::task::yield_now().await;
        }
        match question {
            Question::Memory => bytes("waiters", before),
            Question::Idle => idle("waiters on one lock").await,
            Question::Wakeups => {
                polls.store(0, Ordering::SeqCst);
                let mut guard = holder;
                for _ in 0..HANDOFFS {
                    guard.release().await.expect("memory releases");
                    guard =
                        tasks.join_next().await.expect("somebody waits").expect("a task that does not panic");
                }
                let polled = polls.load(Ordering::SeqCst);
                Measured {
                    figure: polled as f64 / HANDOFFS as f64,
                    note: format!("{polled} polls over {HANDOFFS} releases with {CROWD} in the queue"),
                }
            }
        }
    })
}

/// `Memory` or `Idle` of locks that are held with renewal.
pub(crate) fn held(question: Question) -> Measured {
    run(async move {
        let locks = connect().await;
        let before = resident();
        let mut guards = Vec::with_capacity(CROWD);
        for number in 0..CROWD {
            guards.push(hold(&locks, number).await);
        }
        let mut measured = match question {
            Question::Idle => idle("locks held, each renewed every 10 s").await,
            Question::Memory | Question::Wakeups => bytes("held locks", before),
        };
        let lost = guards.iter().filter(|guard| guard.ensure_held().is_err()).count();
        if lost > 0 {
            measured = Measured { figure: f64::NAN, note: format!("{lost} of {CROWD} locks were lost") };
        }
        measured
    })
}

async fn hold(locks: &Locks, number: usize) -> Guard {
    let lock = locks.mutex(&format!("held/{number}")).expect("a good name");
    lock.lock().await.expect("memory grants")
}

fn bytes(what: &str, before: u64) -> Measured {
    let each = resident().saturating_sub(before) as f64 / CROWD as f64 / 1024.0;
    Measured {
        figure: each,
        note: format!("{CROWD} {what}, {:.0} bytes of resident memory each", each * 1024.0),
    }
}

async fn idle(what: &str) -> Measured {
    let me = [nix::unistd::getpid()];
    // On a thread of its own: the runtime's must be as idle as it is in a program.
    let share =
        tokio::task::spawn_blocking(move || share(&me, SPAN)).await.expect("a thread that does not panic");
    let percent = share * 100.0;
    Measured { figure: percent, note: format!("{CROWD} {what}, over {} s", SPAN.as_secs()) }
}

fn run(work: impl Future<Output = Measured>) -> Measured {
    runtime().block_on(work)
}

/// Counts how often a future is polled.
struct Counted<F> {
    polls: Arc<AtomicUsize>,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.polls.fetch_add(1, Ordering::SeqCst);
        self.work.as_mut().poll(cx)
    }
}
