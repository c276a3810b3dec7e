//! `fencepost demo segments`: one stock in more and more segments, each with a lock of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use fencepost::StripedLock;
use futures_util::future::try_join_all;
use serde::Serialize;
use tokio::time::sleep;

use crate::Demo;
use crate::shop::Shop;
use crate::stage::{self, Failure, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "segments",
    summary: "a flash sale with the stock in 1 to 40 segments: more sales a second, and each piece sold exactly once",
    run,
    part,
};

/// The time between a buyer's look at the stock and its order.
const WORK: Duration = Duration::from_millis(5);
/// How long a sale may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How large the sale is, and the numbers of segments.
struct Size {
    pieces: u32,
    processes: u32,
    buyers: u32,
    segments: &'static [(&'static str, u32)],
}

const FULL: Size = Size {
    pieces: 1000,
    processes: 4,
    buyers: 16,
    segments: &[
        ("1 segment", 1),
        ("5 segments", 5),
        ("10 segments", 10),
        ("20 segments", 20),
        ("40 segments", 40),
    ],
};
const SHORT: Size =
    Size { pieces: 40, processes: 2, buyers: 4, segments: &[("1 segment", 1), ("20 segments", 20)] };

#[derive(Serialize)]
struct Facts {
    segments: u32,
    sold: u64,
    left: i64,
    oversold: u64,
    seconds: f64,
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    let size = if stage.options.short { SHORT } else { FULL };
    stage.picture.say(&format!(
        "A flash sale: {} pieces, {} buyers in {} processes. A buyer locks a segment, works for {} ms, and orders.\n\
         It goes on to another segment when one is busy or sold out.\n",
        size.pieces,
        size.processes * size.buyers,
        size.processes,
        WORK.as_millis()
    ));
    let mut as_told = true;
    for (title, segments) in size.segments {
        let facts = sale(stage, title, *segments, &size)?;
        as_told &= facts.sold == u64::from(size.pieces) && facts.left == 0;
    }
    Ok(stage
        .end(as_told, "Each piece was sold once, and none was left over, whatever the number of segments."))
}

fn sale(stage: &Stage, title: &'static str, segments: u32, size: &Size) -> Result<Facts, Failure> {
    let file = stage.folder().join(format!("shop{segments}.db"));
    let shop = Shop::make(&file, segments, size.pieces)?;
    let row = stage.picture.row(title, size.pieces.into());
    let (start, mut parts) = (Instant::now(), Vec::new());
    for process in 0..size.processes {
        let numbers = [segments, process * size.buyers, size.buyers].map(|n| n.to_string());
        let [segments, first, buyers] = numbers.each_ref().map(String::as_str);
        parts.push(stage.start(&[&file.to_string_lossy(), segments, first, buyers])?);
    }
    for part in &mut parts {
        part.wait(start + LIMIT, || {
            let sold = shop.sold().unwrap_or(0);
            row.move_to(sold, &format!("{sold:>5} sold"));
        })?;
    }
    let (sold, seconds) = (shop.sold()?, start.elapsed().as_secs_f64());
    let left = (0..segments).map(|segment| shop.pieces(segment)).sum::<Result<i64, _>>()?;
    let oversold = sold.saturating_sub(size.pieces.into());
    let text = format!(
        "{sold:>5} sold {oversold:>3} oversold {left:>3} left {seconds:>5.1} s {:>5.0} sales/s",
        sold as f64 / seconds
    );
    let facts = Facts { segments, sold, left, oversold, seconds };
    stage.picture.end(row, &text, &facts);
    Ok(facts)
}

/// A process with buyers.
fn part(arguments: &[String]) -> Result<(), Failure> {
    let [file, segments, first, buyers] = arguments else {
        return Err(Failure::usage("four arguments are expected"));
    };
    let number = |text: &String| text.parse::<u32>().map_err(|error| Failure::usage(error.to_string()));
    let (segments, first, buyers) = (number(segments)?, number(first)?, number(buyers)?);
    let shop = Shop::open(Path::new(file))?;
    stage::runtime()?.block_on(async {
        let locks = stage::connect().await?;
        let stock = locks.striped(&format!("fencepost-demo/stock/{segments}"), segments)?;
        let outcome = try_join_all((first..first + buyers).map(|buyer| buy(&stock, &shop, buyer))).await;
        locks.close().await;
        outcome.map(drop)
    })
}

/// A buyer: it orders until a walk over all segments finds nothing.
async fn buy(stock: &StripedLock, shop: &Shop, buyer: u32) -> Result<(), Failure> {
    while order(stock, shop, buyer).await? {}
    Ok(())
}

/// Orders a piece from the first segment that has one. `false`: all are empty.
async fn order(stock: &StripedLock, shop: &Shop, buyer: u32) -> Result<bool, Failure> {
    let mut walk = stock.free_first();
    while let Some((segment, guard)) = walk.next().await? {
        let segment = u32::try_from(segment).map_err(|error| Failure::new(error.to_string()))?;
        let pieces = shop.pieces(segment)?;
        let sold = pieces > 0 && {
            sleep(WORK).await;
            shop.sell_with_token(segment, pieces - 1, buyer, guard.token().as_i64())?
        };
        // A release that fails says that the lock was lost. Then the token has refused the sale, or it was the last one in time.
        drop(guard.release().await);
        if sold {
            return Ok(true);
        }
    }
    Ok(false)
}
