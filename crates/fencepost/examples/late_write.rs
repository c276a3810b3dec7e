//! A holder is paused past its lease, and its late write is refused by the token: `cargo run -p fencepost --example late_write`.
//!
//! The clock is moved by the example, so it takes no time. The crate `fencepost-fence` does the same with rows of a database.

use std::time::Duration;

use fencepost::{Result, Token, testing};

/// The data that the lock protects. It keeps the greatest token that it has seen.
#[derive(Default)]
struct Stock {
    pieces: i64,
    seen: Option<Token>,
}

impl Stock {
    /// Writes unless a later holder was here. Returns whether it has written.
    fn write(&mut self, token: Token, pieces: i64) -> bool {
        if self.seen.is_some_and(|seen| token < seen) {
            return false;
        }
        (self.pieces, self.seen) = (pieces, Some(token));
        true
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let (locks, clock, engine) = testing::locks();
    let mut stock = Stock::default();

    let first = locks.mutex("stock/42")?.lock().ttl(Duration::from_secs(30)).await?;
    clock.jump(Duration::from_secs(31)); // the program is paused, for example because its machine swaps
    let second = engine.other().mutex("stock/42")?.lock().await?;

    assert!(stock.write(second.token(), 7));
    println!("the second holder has written {} pieces under the token {}", stock.pieces, second.token());
    assert!(!stock.write(first.token(), 8), "the data refuses it");
    println!("the late write under the token {} was refused", first.token());
    assert!(first.ensure_held().is_err_and(|error| error.is_lost()), "and the first holder can know");
    second.release().await
}
