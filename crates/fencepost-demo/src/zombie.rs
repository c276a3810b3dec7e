//! `fencepost demo zombie`: a holder that is paused past its lease writes late.

use std::path::Path;
use std::time::{Duration, Instant};

use fencepost::{Guard, Locks};
use nix::sys::signal::{Signal, raise};
use serde::Serialize;

use crate::Demo;
use crate::shop::Shop;
use crate::stage::{self, Failure, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "zombie",
    summary: "a holder that is paused past its lease writes late: what a look at the guard catches, and what only a token does",
    run,
    part,
};

/// The lease of the lock.
const LEASE: Duration = Duration::from_millis(500);
/// The pieces at the start.
const PIECES: u32 = 10;
/// The pieces that the second holder sells. The paused one sells one piece.
const SECOND: i64 = 3;
/// The lease of the second holder, which keeps the lock on a busy machine as well.
const LONG: Duration = Duration::from_secs(60);
/// How long a round may take.
const LIMIT: Duration = Duration::from_secs(20);

/// The rounds, what the holder does against a late write, and whether that is enough.
const ROUNDS: [(&str, &str, bool); 4] = [
    ("no-check", "The holder writes when it wakes up, as with a lock that has only a timeout.", false),
    (
        "look-after-pause",
        "ensure_held() when it wakes up: it fails, because the lease counts on the holder's clock.",
        true,
    ),
    (
        "look-before-pause",
        "ensure_held(), and the pause comes between it and the write. No lock library can see that.",
        false,
    ),
    (
        "token",
        "UPDATE ... WHERE token <= its token: the stock has seen the second holder's, which is greater.",
        true,
    ),
];

#[derive(Serialize)]
struct Facts {
    round: &'static str,
    stock: i64,
    expected: i64,
    lost_update: bool,
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    stage.picture.say(&format!(
        "A stock of {PIECES} pieces under a lock with a lease of {} ms. The first holder reads the stock, and is stopped (SIGSTOP).\n\
         The lease ends. The second holder sells {SECOND}. Then the first one goes on (SIGCONT) and sells 1.\n",
        LEASE.as_millis()
    ));
    let mut as_told = true;
    for (round, _, is_enough) in ROUNDS {
        let facts = play(stage, round)?;
        as_told &= facts.lost_update != is_enough;
    }
    stage.picture.say("");
    for (round, what, _) in ROUNDS {
        stage.picture.say(&format!("  {round:<18} {what}"));
    }
    Ok(stage.end(
        as_told,
        "A lock alone cannot stop a holder that is paused. The token of its grant can: docs/tokens.md.",
    ))
}

fn play(stage: &Stage, round: &'static str) -> Result<Facts, Failure> {
    let file = stage.folder().join(format!("{round}.db"));
    let shop = Shop::make(&file, 1, PIECES)?;
    let row = stage.picture.row(round, 3);
    let limit = Instant::now() + LIMIT;
    let mut first = stage.start(&[round, &file.to_string_lossy()])?;
    row.move_to(1, "the first holder works");
    first.await_stop(limit)?;
    row.move_to(2, "the first holder is stopped; the second one waits");
    let expected = stage::runtime()?.block_on(async {
        let locks = stage::connect_to(&stage.backend()).await?;
        let guard = lock(&locks, round, LONG).await?;
        let left = shop.pieces(0)? - SECOND;
        shop.sell_with_token(0, left, 2, guard.token().as_i64())?;
        guard.release().await?;
        locks.close().await;
        Ok::<_, Failure>(left)
    })?;
    row.move_to(3, "the first holder goes on");
    first.go_on()?;
    let said = first.wait(limit, || {})?;
    let wrote = said.trim() == "sold";
    // If it sold as well, one piece less is right.
    let (stock, expected) = (shop.pieces(0)?, expected - i64::from(wrote));
    let facts = Facts { round, stock, expected, lost_update: stock != expected };
    let text = match facts.lost_update {
        true => format!("LOST UPDATE: the stock says {stock}, and {expected} pieces are left"),
        false => format!("the late write was refused: {stock} pieces are left"),
    };
    stage.picture.end(row, &text, &facts);
    Ok(facts)
}

async fn lock(locks: &Locks, round: &str, lease: Duration) -> Result<Guard, Failure> {
    let mutex = locks.mutex(&format!("fencepost-demo/zombie/{round}"))?;
    Ok(mutex.lock().ttl(lease.max(locks.capabilities().min_ttl)).wait(LIMIT).await?)
}

/// The first holder.
fn part(arguments: &[String]) -> Result<(), Failure> {
    let [round, file] = arguments else {
        return Err(Failure::usage("two arguments are expected"));
    };
    let shop = Shop::open(Path::new(file))?;
    let sold = stage::runtime()?.block_on(async {
        let locks = stage::connect().await?;
        let (guard, left) = loop {
            let guard = lock(&locks, round, LEASE).await?;
            let left = shop.pieces(0)? - 1;
            // On a busy machine the lease may end before the look. Then it begins anew.
            if round != "look-before-pause" || guard.ensure_held().is_ok() {
                break (guard, left);
            }
        };
        // All threads of the process stop here, also the one that renews the lock.
        raise(Signal::SIGSTOP).map_err(std::io::Error::from)?;
        let sold = match round.as_str() {
            "look-after-pause" if guard.ensure_held().is_err() => false,
            "token" => shop.sell_with_token(0, left, 1, guard.token().as_i64())?,
            _ => shop.sell(0, left, 1).map(|()| true)?,
        };
        // The lock is lost: there is nothing to release.
        drop(guard);
        locks.close().await;
        Ok::<_, Failure>(sold)
    })?;
    println!("{}", if sold { "sold" } else { "refused" });
    Ok(())
}
