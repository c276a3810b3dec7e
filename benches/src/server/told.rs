//! Clients that are stopped, cut off, silent or slow: each knows of its loss when the next is granted.

use super::Copy;
use crate::client::{connect, runtime};
use crate::command::Wrapper;
use crate::figure::Measured;
use crate::redis;
use crate::side::{program, run};
use fencepost::{Guard, Locks};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::history::boottime;
use fencepost_testkit::server::Proxy;
use nix::sys::signal::{Signal, kill};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(2);
/// Longer than the lease.
const PAST: Duration = Duration::from_secs(4);
/// A gap that only a stop makes.
const GAP: Duration = Duration::from_secs(3);
/// The longest wait for the next grant.
const WAIT: Duration = Duration::from_secs(30);

/// Counts the clients that believed in a lock that was granted to the next, or whose successor has no greater token.
pub(crate) fn clients(count: usize) -> Measured {
    let server = redis::start();
    let service = Copy::start(&server.url());
    let mut proxy = Proxy::start(service.address).expect("a proxy");
    let (far, each) = (format!("http://{}", proxy.address()), count / 4);
    let (mut violations, mut granted) = (0, 0);
    for (round, trouble) in ["cut", "silent", "slow"].into_iter().enumerate() {
        let fall = |proxy: &mut Proxy| match trouble {
            "cut" => proxy.cut(),
            "silent" => proxy.silence(),
            _ => proxy.delay(PAST),
        };
        let (all, bad) = runtime().block_on(async {
            let (far, near) = (connect(&far).await, connect(&service.url()).await);
            let held = hold(&far, trouble, each).await;
            // Renewals go on for a while.
            tokio::time::sleep(LEASE / 3 * 2 + Duration::from_millis(97 * round as u64)).await;
            fall(&mut proxy).expect("the proxy can do that");
            let mut next = Vec::with_capacity(each);
            for guard in held {
                let near = near.clone();
                next.push(tokio::spawn(async move {
                    let next = take(&near, guard.name().as_str()).await;
                    // First of all: what does the old holder believe now?
                    let is_good = guard.ensure_held().is_err() && next.token() > guard.token();
                    next.release().await.expect("it is held");
                    is_good
                }));
            }
            let mut bad = 0;
            let all = next.len();
            for next in next {
                bad += usize::from(!next.await.expect("a task that does not panic"));
            }
            proxy.mend().expect("the proxy can do that");
            near.close().await;
            (all, bad)
        });
        (granted, violations) = (granted + all, violations + bad);
    }
    let (all, bad) = stopped(&service, each);
    (granted, violations) = (granted + all, violations + bad);
    let note = format!(
        "{granted} holders with a lease of {} s, a quarter each cut off, silent, slow ({} s each way) and stopped ({} s)",
        LEASE.as_secs(),
        PAST.as_secs(),
        PAST.as_secs()
    );
    Measured { figure: violations as f64, note }
}

async fn hold(locks: &Locks, kind: &str, count: usize) -> Vec<Guard> {
    let mut held = Vec::with_capacity(count);
    for number in 0..count {
        let lock = locks.mutex(&format!("{kind}/{number}")).expect("a good name");
        held.push(lock.lock().ttl(LEASE).await.expect("nobody else wants it"));
    }
    held
}

async fn take(locks: &Locks, name: &str) -> Guard {
    let lock = locks.mutex(name).expect("a good name");
    lock.lock().wait(WAIT).await.expect("the service gives it away")
}

/// A process with all of these locks is stopped. They are granted to others, and it wakes up.
fn stopped(service: &Copy, count: usize) -> (usize, usize) {
    let mut command = program(&["server-side-stopped", &service.url(), &count.to_string()]);
    command.stdin(Stdio::null());
    let mut holder = Wrapper::start(command);
    assert_eq!(holder.line(), "held");
    kill(holder.pid(), Signal::SIGSTOP).expect("a process that runs");
    let start = std::time::Instant::now();
    let tokens = runtime().block_on(async {
        let locks = connect(&service.url()).await;
        let mut tokens = Vec::with_capacity(count);
        for number in 0..count {
            let next = take(&locks, &format!("stopped/{number}")).await;
            tokens.push(next.token().get());
            next.release().await.expect("it is held");
        }
        locks.close().await;
        tokens
    });
    // The holder finds the stop by the gap in its time.
    std::thread::sleep(PAST.saturating_sub(start.elapsed()));
    kill(holder.pid(), Signal::SIGCONT).expect("a process that is stopped");
    let line = holder.line();
    let mut seen = line.split(' ').map(|word| word.parse::<u64>().expect("a number"));
    let believers = seen.next().expect("a number") as usize;
    let greater = seen.zip(&tokens).filter(|(before, next)| *next > before).count();
    (count, believers + count - greater)
}

/// That process. On waking it says how many of its locks it believes in, and their tokens.
pub(crate) fn side(url: &str, count: usize) {
    run(async {
        let locks = connect(url).await;
        let held = Arc::new(hold(&locks, "stopped", count).await);
        let watched = Arc::clone(&held);
        // A thread of its own sees the gap at once, whatever the runtime is doing.
        let watch = std::thread::spawn(move || {
            let mut before = boottime();
            println!("held");
            loop {
                std::thread::sleep(Duration::from_millis(1));
                let now = boottime();
                if now - before > GAP.as_nanos() as u64 {
                    return watched.iter().filter(|guard| guard.ensure_held().is_ok()).count();
                }
                before = now;
            }
        });
        for guard in held.iter() {
            guard.lost().await;
        }
        let believers = watch.join().expect("a thread that does not panic");
        let tokens: Vec<String> = held.iter().map(|guard| guard.token().to_string()).collect();
        println!("{believers} {}", tokens.join(" "));
    });
}
