//! kill -9 of holders and waiters: their places are free at once; a thousand times.

use crate::client::connect;
use crate::command::{Place, Wrapper};
use crate::figure::{Measured, median};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const CYCLES: usize = 1_000;
/// A tenth of the lease would be three seconds: what comes within one did not wait for the lease.
const LIMIT_MS: f64 = 1_000.0;

/// Counts what went wrong: a late grant, a token that does not grow, a claim that is left at the end.
pub(crate) fn places() -> Measured {
    let place = Place::new("killed");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = connect(&place.url()).await;
        let lock = locks.mutex("killed").expect("a good name");
        let mut violations = Vec::new();
        let mut times = Vec::with_capacity(CYCLES);
        let mut last = 0;
        for cycle in 0..CYCLES {
            let mut holder = claimant(&place);
            let held: u64 = holder.line().parse().expect("the holder's token");
            let mut waiter = claimant(&place);
            while locks.inspect("killed").await.expect("the database").waiters().count() == 0 {
                tokio::task::yield_now().await;
            }
            // This process stands behind the waiter, which dies first.
            let mine = tokio::spawn({
                let lock = lock.clone();
                async move { lock.lock().await }
            });
            while locks.inspect("killed").await.expect("the database").waiters().count() < 2 {
                tokio::task::yield_now().await;
            }
            waiter.kill();
            let killed = Instant::now();
            holder.kill();
            let guard = mine.await.expect("a task that does not panic").expect("a grant");
            let took = killed.elapsed().as_secs_f64() * 1e3;
            let token = guard.token().get();
            if held <= last || token <= held {
                violations.push(format!("cycle {cycle}: tokens {last}, {held}, {token}"));
            }
            if took > LIMIT_MS {
                violations.push(format!("cycle {cycle}: the next grant came after {took:.0} ms"));
            }
            last = token;
            times.push(took);
            guard.release().await.expect("it is held");
        }
        let left = locks.inspect("killed").await.expect("the database").claims.len();
        if left > 0 {
            violations.push(format!("{left} claims are left"));
        }
        locks.close().await;
        let worst = times.iter().copied().fold(0.0, f64::max);
        let first = violations.first().map_or_else(String::new, |first| format!("; first: {first}"));
        let note = format!(
            "{CYCLES} holders and {CYCLES} waiters killed; next grant after {:.1} ms (median), {worst:.1} ms (worst){first}",
            median(times)
        );
        Measured { figure: violations.len() as f64, note }
    })
}

fn claimant(place: &Place) -> Wrapper {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.arg("sqlite-killed-side").arg(place.file("")).stdin(Stdio::null());
    Wrapper::start(command)
}

/// One that is killed: waits for the lock, says its token, and stays.
pub(crate) fn side(place: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = connect(&format!("sqlite:{}", place.join("locks.db").display())).await;
        let guard = locks.mutex("killed").expect("a good name").lock().await.expect("a grant");
        println!("{}", guard.token());
        // A reader sees the line at once or not at all.
        let _ = std::io::stdout().flush();
        guard.lost().await;
    });
}
