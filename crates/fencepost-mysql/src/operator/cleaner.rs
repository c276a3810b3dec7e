//! Removes the rows of locks that nobody has used for 30 days.

use std::sync::Weak;
use std::time::Duration;

use fencepost_core::CleaningTimes;
use fencepost_sql::Failure;

use crate::client::MysqlClient;
use crate::schema::tokens::{PAGE, old_rows, remove_old};

/// How long the client pauses after each page and each removal: claims come first.
const PAUSE: Duration = Duration::from_millis(10);

/// The idle timeout of the connection that removes.
const IDLE: Duration = Duration::from_secs(30);

/// Cleans until the client is dropped.
pub(crate) async fn run(client: Weak<MysqlClient>) {
    let Some(mut times) = client.upgrade().map(|client| CleaningTimes::of(&client.runtime)) else { return };
    while times.next().await {
        let Some(known) = client.upgrade() else { return };
        let has_table = known.server.found().no_tokens.is_none();
        drop(known);
        if has_table && let Err(failure) = clean(&client).await {
            tracing::debug!(%failure, "old rows of fencepost_token stay");
        }
    }
}

async fn clean(client: &Weak<MysqlClient>) -> Result<(), Failure> {
    // Below all names of locks. An empty text has no hexadecimal digits.
    let mut last = vec![0];
    loop {
        let Some(client) = client.upgrade().filter(|client| !client.runtime.clock().is_stopped()) else {
            return Ok(());
        };
        let connection = client.connection().await?;
        let read = old_rows(&last);
        let page = connection.run(|session| session.query(&read)).await?;
        let is_last = page.len() < PAGE;
        let mut old = Vec::new();
        for mut row in page {
            let (Some(lock), is_old) = (row.take::<Vec<u8>, _>(0), row.take::<i64, _>(1)) else { continue };
            last.clone_from(&lock);
            if is_old == Some(1) {
                old.push(lock);
            }
        }
        remove(&client, &old).await?;
        if is_last {
            return Ok(());
        }
        pause(&client).await;
    }
}

/// Removes rows one by one, on a connection that holds nothing: a row may be locked by others, and pings must not wait for that.
async fn remove(client: &MysqlClient, locks: &[Vec<u8>]) -> Result<(), Failure> {
    if locks.is_empty() {
        return Ok(());
    }
    let Some(mut aside) = client.connections.aside(IDLE).await? else { return Ok(()) };
    for lock in locks {
        let remove = remove_old(lock);
        match aside.connection().run(|session| session.query(&remove)).await {
            Ok(_) => {}
            // Others have the row locked. It stays until the next time.
            Err(failure) if failure.conflict => {}
            Err(failure) => return Err(failure),
        }
        pause(client).await;
    }
    aside.set_clean(true);
    Ok(())
}

async fn pause(client: &MysqlClient) {
    let clock = client.runtime.clock();
    clock.sleep_until(clock.now() + PAUSE).await;
}
