//! Removes rows that nobody needs any more: sessions of dead processes, and locks that nobody has used for long.

use std::sync::Weak;
use std::time::Duration;

use crate::client::{TableClient, micros};
use crate::database::Lane;
use crate::failure::Failure;
use crate::statements::with;

/// How often a client cleans.
const INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// How long the session of a dead process stays after its lease.
const KEEP_SESSION: Duration = Duration::from_secs(24 * 3600);

/// How long a name stays after its last use.
const KEEP_NAME: Duration = Duration::from_secs(30 * 24 * 3600);

/// How old the greatest token of removed names has to be before names up to it are removed. No statement lasts as long.
const KEEP_MARK: Duration = Duration::from_secs(24 * 3600);

/// Cleans until the client is dropped.
pub(crate) async fn run(client: Weak<TableClient>) {
    loop {
        let Some(client) = client.upgrade() else { return };
        let clock = client.runtime.clock().clone();
        if let Err(failure) = clean(&client).await {
            tracing::debug!(%failure, "old rows of the lease table stay");
        }
        drop(client);
        clock.sleep_until(clock.now() + INTERVAL).await;
        if clock.is_stopped() {
            return;
        }
    }
}

async fn clean(client: &TableClient) -> Result<(), Failure> {
    let ago = |duration| (-micros(duration)).into();
    let [sessions, names, mark] = &client.statements.clean;
    let statements = vec![
        with(sessions, vec![ago(KEEP_SESSION)]),
        with(names, vec![ago(KEEP_NAME), ago(KEEP_MARK)]),
        with(mark, vec![ago(KEEP_MARK)]),
    ];
    client.run_all(statements, Lane::Claims).await.map(drop)
}
