//! The test of records of runs whose time is over. Each SQL engine passes it.

use std::time::Duration;

use fencepost_core::{Client, Registry};

use crate::wait::eventually;

/// The time limit for events that should happen soon, on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Clients delete old records beside their own writes. `names`: returns the names in the table of runs.
///
/// # Panics
/// Panics if the test fails.
pub async fn old_runs_are_deleted(registry: &Registry, url: &str, names: impl Fn() -> String) {
    let builder = Client::builder().history(Duration::from_millis(1));
    let client = builder.connect(registry, url).await.expect("it answers");
    let cycle = async |name: &str| {
        let mutex = client.mutex(name).expect("a good name");
        mutex.lock().await.expect("it is free").release().await.expect("it was held");
    };
    // One write of 100 deletes its own record at once.
    eventually(SOON, "the record is there", || async {
        cycle("old").await;
        names().contains("old")
    })
    .await;
    eventually(SOON, "the record is deleted", || async {
        cycle("new").await;
        !names().contains("old")
    })
    .await;
    client.close().await;
}
