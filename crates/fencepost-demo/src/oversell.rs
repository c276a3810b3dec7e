//! `fencepost demo oversell`: a flash sale with each recipe for a lock that people copy.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Demo;
use crate::keys::Keys;
use crate::picture::Row;
use crate::recipes::{LEASE, SLOW, WORK, part};
use crate::shop::Shop;
use crate::stage::{Failure, Part, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "oversell",
    summary: "a flash sale with each lock recipe that people copy: which of them sell more pieces than there are",
    run,
    part,
};

/// How long a recipe may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The recipes, and what each is.
const RECIPES: [(&str, &str); 8] = [
    ("no-lock", "Two buyers read the same number, and both write it less one."),
    ("local-mutex", "A mutex excludes the threads of one process. The other processes do not see it."),
    (
        "setnx-expire",
        "SETNX, EXPIRE, DEL: the lock ends before a slow buyer does, and its DEL frees the next one's.",
    ),
    ("delete-unchecked", "SET NX PX, DEL: the same. What is closed is a crash between SETNX and EXPIRE."),
    (
        "check-then-delete",
        "GET, compare, DEL: before the DEL the lock ends, and the DEL frees the next one's.",
    ),
    (
        "no-renewal",
        "SET NX PX, and DEL by a script that compares: the lock still ends before a slow buyer does.",
    ),
    (
        "fencepost",
        "The lock is renewed while its buyer works, and the stock refuses the token of a lost one.",
    ),
    (
        "conditional-update",
        "UPDATE ... WHERE pieces >= 1, and no lock: the better answer where one statement is enough.",
    ),
];

/// How large the sale is.
struct Size {
    pieces: u32,
    processes: u32,
    buyers: u32,
    /// The buyer of each piece whose number is a multiple of this is slow.
    slow: u32,
}

const FULL: Size = Size { pieces: 1000, processes: 4, buyers: 16, slow: 125 };
const SHORT: Size = Size { pieces: 40, processes: 2, buyers: 8, slow: 20 };

#[derive(Serialize)]
struct Facts {
    recipe: &'static str,
    sold: u64,
    oversold: u64,
    seconds: f64,
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    let size = if stage.options.short { SHORT } else { FULL };
    stage.picture.say(&format!(
        "A flash sale: {} pieces, {} buyers in {} processes.\n\
         Most work for {} ms, each {}th one for {} ms. Leases: {} ms.\n",
        size.pieces,
        size.processes * size.buyers,
        size.processes,
        WORK.as_millis(),
        size.slow,
        SLOW.as_millis(),
        LEASE.as_millis(),
    ));
    let mut sales = Vec::new();
    if stage.options.short {
        // All at once: what they sell is the same, and their times say nothing.
        let begun: Vec<_> =
            RECIPES.iter().map(|(recipe, _)| Sale::begin(stage, recipe, &size)).collect::<Result<_, _>>()?;
        for sale in begun {
            sales.push(sale.end(stage)?);
        }
    } else {
        for (recipe, _) in RECIPES {
            sales.push(Sale::begin(stage, recipe, &size)?.end(stage)?);
        }
    }
    let as_told = sales.iter().all(|sale| match sale.recipe {
        "fencepost" | "conditional-update" => sale.sold == u64::from(size.pieces),
        _ => sale.oversold > 0,
    });
    stage.picture.say("");
    for (recipe, what) in RECIPES {
        stage.picture.say(&format!("  {recipe:<18} {what}"));
    }
    Ok(stage.end(as_told, "Each copied recipe has sold pieces that do not exist.\nfencepost and the conditional update have not."))
}

/// A sale by one recipe that is under way.
struct Sale {
    recipe: &'static str,
    pieces: u64,
    start: Instant,
    shop: Shop,
    row: Row,
    parts: Vec<Part>,
}

impl Sale {
    fn begin(stage: &Stage, recipe: &'static str, size: &Size) -> Result<Sale, Failure> {
        let folder = stage.folder().join(recipe);
        std::fs::create_dir(&folder)?;
        let shop = Shop::make(&folder.join("shop.db"), 1, size.pieces)?;
        Keys::open(&folder.join("keys.db"))?;
        let row = stage.picture.row(recipe, size.pieces.into());
        // Without a lock a piece is sold many times: the buyers stop at four times the stock.
        let most = 4 * size.pieces / (size.processes * size.buyers) + 1;
        let (start, mut parts) = (Instant::now(), Vec::new());
        for process in 0..size.processes {
            let numbers = [process * size.buyers, size.buyers, size.slow, most, size.processes];
            let numbers = numbers.map(|n| n.to_string());
            let folder = folder.to_string_lossy();
            let arguments: Vec<&str> =
                [recipe, &*folder].into_iter().chain(numbers.iter().map(String::as_str)).collect();
            parts.push(stage.start(&arguments)?);
        }
        Ok(Sale { recipe, pieces: size.pieces.into(), start, shop, row, parts })
    }

    fn end(self, stage: &Stage) -> Result<Facts, Failure> {
        let Sale { recipe, pieces, start, shop, row, parts } = self;
        for mut part in parts {
            part.wait(start + LIMIT, || {
                let sold = shop.sold().unwrap_or(0);
                row.move_to(sold.min(pieces), &format!("{:>5} oversold", sold.saturating_sub(pieces)));
            })?;
        }
        let (sold, seconds) = (shop.sold()?, start.elapsed().as_secs_f64());
        let oversold = sold.saturating_sub(pieces);
        let text = format!("{oversold:>5} oversold {seconds:>5.1} s {:>5.0} sales/s", sold as f64 / seconds);
        let facts = Facts { recipe, sold, oversold, seconds };
        stage.picture.end(row, &text, &facts);
        Ok(facts)
    }
}
