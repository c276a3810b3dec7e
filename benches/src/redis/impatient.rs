//! Callers that give up by the hundred thousand.

use super::server::Auditor;
use crate::client::{NAME, threads};
use crate::figure::Measured;
use fencepost::{Guard, Locks};
use fencepost_testkit::redis::{Config, Redis};
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

/// How many tasks ask and give up.
const TASKS: usize = 16;
/// How many other locks are held meanwhile.
const OTHERS: usize = 100;
/// The lease of those: short enough that a stall of some seconds loses them.
const LEASE: Duration = Duration::from_secs(3);
/// Commands that take longer are counted.
const SLOW: Duration = Duration::from_millis(5);
/// How many fields the lock may have then: two for each of its 1,000 tombstones, and their list. They come from connections that broke.
const MOST_LEFT: i64 = 2_001;
/// No command may take as long.
const STALL: Duration = Duration::from_millis(50);

/// Counts slow commands in 10,000 while `count` callers give up on one name.
pub(crate) fn calls(count: usize) -> Measured {
    let config = Config::new()
        .line(format!("slowlog-log-slower-than {}", SLOW.as_micros()))
        .line("slowlog-max-len 1000000");
    let server = Redis::start(&config).expect("redis-server, which `cargo xtask test` installs");
    let runtime = threads();
    let mut auditor = Auditor::of(&server);
    auditor.reset();
    let start = Instant::now();
    let (granted, lost, left) = runtime.block_on(give_up(&server, count));
    let seconds = start.elapsed().as_secs_f64();
    let slow = auditor.slow();
    let commands = auditor.commands();
    let longest = slow.iter().max().copied().unwrap_or_default();
    let good = lost == 0 && left <= MOST_LEFT && longest < STALL;
    let note = format!(
        "{count} calls by {TASKS} tasks in {seconds:.1} s, {granted} of them granted before they were given up; {commands} commands, \
         {} of them slower than {SLOW:?}, the slowest {longest:?}; {lost} of {OTHERS} other locks lost, {left} fields of \
         tombstones left",
        slow.len()
    );
    Measured { figure: if good { slow.len() as f64 * 1e4 / commands } else { f64::NAN }, note }
}

/// Answers how many calls were granted, how many other locks were lost, and how many fields more than its token the lock has then.
async fn give_up(server: &Redis, count: usize) -> (usize, usize, i64) {
    let others = Locks::builder(&server.url()).ttl(LEASE);
    let others = others.connect().await.expect("a server that answers");
    let mut held: Vec<Guard> = Vec::with_capacity(OTHERS);
    for number in 0..OTHERS {
        let lock = others.mutex(&format!("other-{number}")).expect("a good name");
        held.push(lock.lock().await.expect("nobody else wants it"));
    }
    let locks = Locks::connect(&server.url()).await.expect("a server that answers");
    let tasks: Vec<_> =
        (0..TASKS).map(|task| tokio::spawn(ask(locks.clone(), task, count / TASKS))).collect();
    let mut granted = 0;
    for task in tasks {
        granted += task.await.expect("a task that does not panic");
    }
    while locks.backlog() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let lock = locks.mutex(NAME).expect("a good name");
    lock.lock().await.expect("nobody is there").release().await.expect("it is held");
    let lost = held.iter().filter(|guard| guard.ensure_held().is_err()).count();
    let left: i64 = server.look().ask(&["HLEN", &format!("fencepost:{NAME}")]);
    locks.close().await;
    others.close().await;
    (granted, lost, left - 1)
}

/// Asks for the lock and gives up, each time in another way. Answers how often it was granted.
async fn ask(locks: Locks, task: usize, count: usize) -> usize {
    let lock = locks.mutex(NAME).expect("a good name");
    let readers = locks.rwlock(NAME).expect("a good name");
    let mut granted = 0;
    for number in 0..count {
        granted += usize::from(match number % 4 {
            0 => at_once(lock.lock()).await,
            1 => at_once(lock.try_lock()).await,
            2 => at_once(readers.read()).await,
            _ => {
                let wait = Duration::from_micros(((task * 7_919 + number * 104_729) % 4_000) as u64);
                matches!(tokio::time::timeout(wait, lock.lock().into_future()).await, Ok(Ok(_)))
            }
        });
        tokio::task::yield_now().await;
    }
    granted
}

/// Sends the request and drops it. Answers whether the answer was quicker.
async fn at_once<T>(request: impl IntoFuture<Output = T>) -> bool {
    let mut request = pin!(request.into_future());
    poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx).is_ready())).await
}
