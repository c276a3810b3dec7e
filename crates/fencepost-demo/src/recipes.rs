//! The recipes of the demo `oversell`, in full: those that people copy, fencepost, and a conditional update.

use std::fs::DirEntry;
use std::path::Path;
use std::time::Duration;

use fencepost::Locks;
use futures_util::future::try_join_all;
use tokio::time::sleep;

use crate::keys::Keys;
use crate::shop::Shop;
use crate::stage::{self, Failure};

/// The lease of every lock in the demo. 200 ms is the shortest that fencepost allows.
pub(crate) const LEASE: Duration = Duration::from_millis(200);
/// The time between a buyer's look at the stock and its order.
pub(crate) const WORK: Duration = Duration::from_millis(2);
/// The same for a slow buyer: a pause of a garbage collector, a slow query.
pub(crate) const SLOW: Duration = Duration::from_millis(300);
/// The same for a buyer that is slow, and yet ready before its lease ends.
const IN_TIME: Duration = Duration::from_millis(180);
/// How often a copied recipe looks whether the lock is free.
const POLL: Duration = Duration::from_millis(5);
/// The name of the lock.
const NAME: &str = "fencepost-demo/stock/42";
/// A process with buyers. The demo `oversell` starts some.
pub(crate) fn part(arguments: &[String]) -> Result<(), Failure> {
    let [recipe, folder, first, buyers, slow, most, processes] = arguments else {
        return Err(Failure::usage("seven arguments are expected"));
    };
    let number = |text: &String| text.parse::<u32>().map_err(|error| Failure::usage(error.to_string()));
    let (first, buyers, most) = (number(first)?, number(buyers)?, number(most)?);
    let (folder, processes) = (Path::new(folder), number(processes)? as usize);
    stage::runtime()?.block_on(async {
        let process = Process::open(recipe, folder, number(slow)?).await?;
        await_others(folder, first, processes).await?;
        let all = (first..first + buyers).map(|buyer| process.buy(buyer, most));
        let outcome = try_join_all(all).await;
        if let Some(locks) = &process.locks {
            locks.close().await;
        }
        outcome.map(drop)
    })
}

/// Waits until all processes of the sale are ready. On a busy machine the first one might else sell all pieces alone.
async fn await_others(folder: &Path, first: u32, processes: usize) -> Result<(), Failure> {
    std::fs::write(folder.join(format!("ready-{first}")), "")?;
    let is_ready = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(b"ready-");
    until(|| Ok(std::fs::read_dir(folder)?.flatten().filter(is_ready).count() >= processes)).await
}

/// The parts that the buyers of a process share.
struct Process {
    recipe: String,
    shop: Shop,
    keys: Keys,
    local: tokio::sync::Mutex<()>,
    locks: Option<Locks>,
    slow: i64,
}

impl Process {
    async fn open(recipe: &str, folder: &Path, slow: u32) -> Result<Process, Failure> {
        Ok(Process {
            recipe: recipe.to_owned(),
            shop: Shop::open(&folder.join("shop.db"))?,
            keys: Keys::open(&folder.join("keys.db"))?,
            local: tokio::sync::Mutex::new(()),
            locks: if recipe == "fencepost" { Some(stage::connect().await?) } else { None },
            slow: slow.into(),
        })
    }

    /// A buyer: it orders until the stock is empty, and at most so many pieces.
    async fn buy(&self, buyer: u32, most: u32) -> Result<(), Failure> {
        for _ in 0..most {
            if !self.order(buyer).await? {
                break;
            }
        }
        Ok(())
    }

    /// Orders a piece by this process's recipe. `false`: the stock is empty.
    async fn order(&self, buyer: u32) -> Result<bool, Failure> {
        let keys = &self.keys;
        match self.recipe.as_str() {
            "no-lock" => self.sell(buyer).await,
            "local-mutex" => {
                let _alone = self.local.lock().await;
                self.sell(buyer).await
            }
            "setnx-expire" => {
                until(|| keys.set_nx(NAME, buyer, None)).await?;
                keys.expire(NAME, LEASE)?;
                let sold = self.sell(buyer).await?;
                keys.del(NAME)?;
                Ok(sold)
            }
            "delete-unchecked" => {
                until(|| keys.set_nx(NAME, buyer, Some(LEASE))).await?;
                let sold = self.sell(buyer).await?;
                keys.del(NAME)?;
                Ok(sold)
            }
            "check-then-delete" => {
                until(|| keys.set_nx(NAME, buyer, Some(LEASE))).await?;
                let pieces = self.shop.pieces(0)?;
                // Here no buyer works past its lease. The slow one pauses after GET, and the next one is at work meanwhile.
                let (work, pause) = match pieces % self.slow {
                    0 => (WORK, SLOW),
                    last if last == self.slow - 1 => (IN_TIME, Duration::ZERO),
                    _ => (WORK, Duration::ZERO),
                };
                let sold = self.sell_one_of(pieces, buyer, work).await?;
                if keys.get(NAME)? == Some(buyer) {
                    sleep(pause).await;
                    keys.del(NAME)?;
                }
                Ok(sold)
            }
            "no-renewal" => {
                until(|| keys.set_nx(NAME, buyer, Some(LEASE))).await?;
                let sold = self.sell(buyer).await?;
                keys.del_if(NAME, buyer)?;
                Ok(sold)
            }
            "fencepost" => self.sell_under_lock(buyer).await,
            "conditional-update" => {
                sleep(self.work(self.shop.pieces(0)?)).await;
                self.shop.sell_if_left(0, buyer)
            }
            other => Err(Failure::usage(format!("there is no recipe '{other}'"))),
        }
    }

    /// Reads the stock, works, and writes one piece less.
    async fn sell(&self, buyer: u32) -> Result<bool, Failure> {
        let pieces = self.shop.pieces(0)?;
        self.sell_one_of(pieces, buyer, self.work(pieces)).await
    }

    async fn sell_one_of(&self, pieces: i64, buyer: u32, work: Duration) -> Result<bool, Failure> {
        if pieces <= 0 {
            return Ok(false);
        }
        sleep(work).await;
        self.shop.sell(0, pieces - 1, buyer)?;
        Ok(true)
    }

    /// The same under a lock of fencepost, with its token.
    async fn sell_under_lock(&self, buyer: u32) -> Result<bool, Failure> {
        let locks = self.locks.as_ref().ok_or_else(|| Failure::new("the engine is not connected"))?;
        let ttl = LEASE.max(locks.capabilities().min_ttl);
        let mutex = locks.mutex(NAME)?;
        loop {
            let guard = mutex.lock().ttl(ttl).await?;
            let pieces = self.shop.pieces(0)?;
            if pieces <= 0 {
                return Ok(false);
            }
            sleep(self.work(pieces)).await;
            let sold = self.shop.sell_with_token(0, pieces - 1, buyer, guard.token().as_i64())?;
            // A release that fails says that the lock was lost: the token has refused this sale, or it was the last one in time.
            drop(guard.release().await);
            if sold {
                return Ok(true);
            }
        }
    }

    /// How long the buyer of this piece works.
    fn work(&self, piece: i64) -> Duration {
        if piece % self.slow == 0 { SLOW } else { WORK }
    }
}

/// Polls until the recipe has its lock.
async fn until(mut lock: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    while !lock()? {
        sleep(POLL).await;
    }
    Ok(())
}
