//! Takes a lock, shows its token and releases it: `cargo run -p fencepost --example first_lock`.
//!
//! With a URL it uses that engine, whose feature must be on: `cargo run -p fencepost --features redis --example first_lock --
//! redis://127.0.0.1`. Run it twice at the same time to see one of them wait.

use std::time::Duration;

use fencepost::Locks;

#[tokio::main(flavor = "current_thread")]
async fn main() -> fencepost::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;
    let stock = locks.mutex("stock/42")?;

    // The work is dropped if the lock is lost. Its result says whether the lock was held to the end.
    let token = stock
        .lock()
        .wait(Duration::from_secs(30))
        .run(|lock| async move {
            println!("this program holds {} under the token {}", lock.name(), lock.token());
            tokio::time::sleep(Duration::from_millis(500)).await;
            lock.token()
        })
        .await?;
    println!("the lock with the token {token} is free again");
    locks.close().await;
    Ok(())
}
