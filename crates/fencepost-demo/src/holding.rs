//! The answer to a request for a lock, in the demos `failover` and `redlock`.

use fencepost::{Guard, Locks};

use crate::shop::Shop;
use crate::stage::Failure;

pub(crate) enum Holding {
    Nothing,
    /// By the commands of Redis. The holder has no more than its belief.
    Believed,
    Held(Box<Guard>, Locks),
}

impl Holding {
    pub(crate) fn holds(&self) -> bool {
        match self {
            Holding::Nothing => false,
            Holding::Believed => true,
            Holding::Held(guard, _) => guard.ensure_held().is_ok(),
        }
    }

    pub(crate) async fn close(self) {
        if let Holding::Held(guard, locks) = self {
            drop(guard);
            locks.close().await;
        }
    }

    /// Writes the stock, with the token if there is one.
    fn write(&self, shop: &Shop, left: i64, buyer: u32) -> Result<(), Failure> {
        match self {
            Holding::Nothing => Ok(()),
            Holding::Believed => shop.sell(0, left, buyer),
            // `false`: the stock has refused the token.
            Holding::Held(guard, _) => shop.sell_with_token(0, left, buyer, guard.token().as_i64()).map(drop),
        }
    }
}

/// The first holder reads the stock and is slow. The second one sells 3, if it holds, and then the first one sells 1. Returns whether the
/// second one's sale is lost.
pub(crate) fn loses_update(shop: &Shop, first: &Holding, second: &Holding) -> Result<bool, Failure> {
    let read = shop.pieces(0)?;
    second.write(shop, read - 3, 2)?;
    let expected = shop.pieces(0)?;
    first.write(shop, read - 1, 1)?;
    Ok(second.holds() && shop.pieces(0)? != expected)
}
