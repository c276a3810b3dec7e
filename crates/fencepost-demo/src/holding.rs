//! The answer to a request for a lock, in the demos `failover`, `splitbrain` and `redlock`.

use std::time::Duration;

use fencepost::{Guard, Locks};

use crate::server::{Server, command};
use crate::shop::Shop;
use crate::stage::Failure;

/// The lease, which no round outlives.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// How long a busy machine may take for a request.
pub(crate) const WAIT: Duration = Duration::from_secs(10);
/// How long a client waits for a server that is gone.
const PATIENCE: Duration = Duration::from_millis(100);

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

/// Asks a server by `SET NX PX`.
pub(crate) async fn ask_by_hand(server: &Server, name: &str, owner: &str) -> Result<Holding, Failure> {
    let lease = LEASE.as_millis().to_string();
    let set = command(&["SET", name, owner, "NX", "PX", &lease]);
    let set: Option<String> = set.query_async(&mut server.connect().await?).await?;
    Ok(set.map_or(Holding::Nothing, |_| Holding::Believed))
}

/// Asks fencepost. The grant counts if this number of replicas has it. Where the replica follows, a busy machine may make it late: then the
/// client asks again for as long as `wait`.
pub(crate) async fn ask(url: &str, name: &str, replicas: u32, wait: Duration) -> Result<Holding, Failure> {
    let builder = Locks::builder(url).ttl(LEASE).connect_wait(WAIT).attempt_timeout(WAIT);
    let builder = builder.close_timeout(PATIENCE).release_timeout(PATIENCE).drop_timeout(PATIENCE);
    let locks = builder.connect().await?;
    match locks.mutex(name)?.try_lock().wait(wait).replicas(replicas).await {
        Ok(Some(guard)) => Ok(Holding::Held(Box::new(guard), locks)),
        Ok(None) => Ok(Holding::Nothing),
        // Too few replicas have acknowledged the grant.
        Err(_) if replicas > 0 => Ok(Holding::Nothing),
        Err(error) => Err(error.into()),
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
