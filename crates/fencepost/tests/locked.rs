//! Functions under a lock.
#![cfg(all(feature = "blocking", feature = "macros"))]

use std::time::Duration;

use fencepost::{Block, Error, Locks, Result, locked};

#[locked("order:{id}", wait = "20ms", view = lock)]
async fn pay(locks: &Locks, id: u64) -> Result<String> {
    assert!(locks.mutex(&format!("order:{id}"))?.try_lock().await?.is_none(), "the body has the lock");
    Ok(format!("{} {}", lock.name(), lock.token().get() > 0))
}

/// An error of the program.
#[derive(Debug, PartialEq)]
enum ShopError {
    Busy,
    Lock(bool),
}

impl From<Error> for ShopError {
    fn from(error: Error) -> ShopError {
        ShopError::Lock(error.is_lost())
    }
}

#[locked("order:{}/{}", id + 1, name.len(), ttl = Duration::from_secs(9), on_busy = Err(ShopError::Busy))]
async fn ship(locks: Locks, id: u64, name: String) -> std::result::Result<String, ShopError> {
    let early = u64::try_from(-1_i64).ok();
    if early.is_some() {
        return Err(ShopError::Busy);
    }
    locks.mutex("other")?; // the error of the body converts, too
    Ok(name)
}

struct Shop {
    locks: Locks,
}

impl Shop {
    #[locked("shop", reason = "sale", on_busy = Ok(0))]
    fn sell(&self, pieces: u64) -> Result<u64> {
        let info = self.locks.inspect("shop").block()?;
        assert_eq!(info.holders().next().and_then(|holder| holder.reason.as_deref()), Some("sale"));
        Ok(pieces)
    }
}

#[locked("prices", mode = read, on_busy = Ok(false))]
async fn look(locks: &Locks) -> Result<bool> {
    let prices = locks.rwlock("prices")?;
    assert!(prices.try_read().await?.is_some() && prices.try_write().await?.is_none());
    Ok(true)
}

#[locked("imports", permits = 2, wait = "5s", max_hold = "1m", at_least = "1ms", evict_overdue = true)]
async fn import(locks: &Locks) -> Result<Option<Duration>> {
    let info = locks.inspect("imports").await?;
    Ok(info.holders().next().and_then(|holder| holder.max_hold))
}

#[tokio::test]
async fn the_kind_of_lock_and_its_limits_can_be_chosen() -> Result<()> {
    let locks = Locks::connect("memory:").await?;
    assert!(look(&locks).await?);
    let writer = locks.rwlock("prices")?.write().await?;
    assert!(!look(&locks).await?);
    writer.release().await?;
    assert_eq!(import(&locks).await?, Some(Duration::from_secs(60)));
    Ok(())
}

#[tokio::test]
async fn the_body_runs_under_its_lock() -> Result<()> {
    let locks = Locks::connect("memory:").await?;
    assert_eq!(pay(&locks, 42).await?, "order:42 true");
    let other = locks.mutex("order:42")?.lock().await?;
    assert!(pay(&locks, 42).await.is_err_and(|error| error.is_timeout()));
    assert_eq!(pay(&locks, 43).await?, "order:43 true", "another order is free");
    other.release().await
}

#[tokio::test]
async fn a_busy_lock_gives_the_value_of_on_busy() -> Result<()> {
    let locks = Locks::connect("memory:").await?;
    assert_eq!(ship(locks.clone(), 1, "ab".to_owned()).await, Ok("ab".to_owned()));
    let other = locks.mutex("order:2/2")?.lock().await?;
    assert_eq!(ship(locks.clone(), 1, "ab".to_owned()).await, Err(ShopError::Busy));
    other.release().await
}

#[test]
fn a_function_without_async_blocks_its_thread() -> Result<()> {
    let locks = Locks::connect("memory:").block()?;
    let shop = Shop { locks: locks.clone() };
    assert_eq!(shop.sell(3)?, 3);
    let other = locks.mutex("shop")?.lock().block()?;
    assert_eq!(shop.sell(3)?, 0);
    other.release().block()
}

#[tokio::test]
async fn a_lost_lock_drops_the_body() {
    #[locked("feed")]
    async fn import(locks: &Locks) -> std::result::Result<(), ShopError> {
        std::future::pending().await
    }
    let (locks, _clock, engine) = fencepost::testing::locks();
    let loss = async {
        while engine.lose("feed") == 0 {
            tokio::task::yield_now().await;
        }
    };
    let (imported, ()) = tokio::join!(import(&locks), loss);
    assert_eq!(imported, Err(ShopError::Lock(true)));
}
