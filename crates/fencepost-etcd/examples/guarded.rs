//! A stale holder is refused by etcd itself: `cargo run -p fencepost-etcd --example guarded -- etcd://127.0.0.1`.

use fencepost_core::{Client, Eviction, Registry};
use fencepost_etcd::Held;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("give the URL of an etcd, as in etcd://127.0.0.1")?;
    let locks = Client::builder().connect(&fencepost_etcd::register(Registry::new()), &url).await?;
    let stock = locks.mutex("example-stock")?;

    let mut first = stock.lock().await?;
    let held = first.native().and_then(|native| native.downcast_ref::<Held>()).ok_or("no grant")?.clone();
    println!("the first holder writes 9: revision {}", held.put("example-count", "9").await?);

    // Somebody loses patience with it and breaks in. The same happens to one that is paused past its lease.
    locks.evict("example-stock", first.token(), &Eviction::new(true)).await?;
    let mut second = stock.lock().await?;
    let next = second.native().and_then(|native| native.downcast_ref::<Held>()).ok_or("no grant")?.clone();
    println!("the second holder writes 8: revision {}", next.put("example-count", "8").await?);

    // The first one knows nothing of it and goes on.
    match held.put("example-count", "9").await {
        Ok(_) => return Err("a stale holder wrote over its successor's work".into()),
        Err(error) => println!("the first holder is refused: {error}"),
    }
    second.release().await?;
    locks.close().await;
    Ok(())
}
