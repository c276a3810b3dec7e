//! Three hosts start the same job, and one of them runs it: `cargo run -p fencepost --example once`.

use std::time::Duration;

use fencepost::{Firing, Locks, Result};

/// Runs the job unless another host has run it in this hour, or is running it.
async fn start(locks: &Locks, host: &str) -> Result<()> {
    let nightly = locks.once("nightly", Duration::from_secs(3_600))?;
    match nightly.try_begin().wait(Duration::from_secs(10)).await? {
        Some(Firing::First(guard)) => {
            println!("{host} runs the job under the token {}", guard.token());
            tokio::time::sleep(Duration::from_millis(200)).await;
            guard.report(0); // the exit code of the work
            guard.release().await
        }
        Some(Firing::Already(run)) => {
            println!("{host} does nothing, because the job has run; good: {}", run.is_good());
            Ok(())
        }
        None => {
            println!("{host} does nothing, because another host is at work");
            Ok(())
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let locks = Locks::connect("memory:").await?;
    tokio::try_join!(start(&locks, "host 1"), start(&locks, "host 2"), start(&locks, "host 3"))?;
    locks.close().await;
    Ok(())
}
