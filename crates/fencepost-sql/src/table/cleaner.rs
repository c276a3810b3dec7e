//! Removes rows that nobody needs any more: sessions and claims of dead clients, and locks that nobody has used for long.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::CleaningTimes;

use crate::database::Lane;
use crate::database::with;
use crate::failure::{Failure, past_conflicts};
use crate::table::claim::line::Line;
use crate::table::client::{TableClient, micros};
use crate::table::statements::NAMES_AT_ONCE;

/// How long the session of a dead client stays after its lease.
const KEEP_SESSION: Duration = Duration::from_secs(24 * 3600);

/// How long a name stays after its last use.
const KEEP_NAME: Duration = Duration::from_secs(30 * 24 * 3600);

/// How old the watermark has to be before names are removed whose last tokens are not above it. Names that were removed begin again above the
/// watermark, and a statement that began before it was raised may still read the one before. No statement lasts as long as this.
const KEEP_WATERMARK: Duration = Duration::from_secs(24 * 3600);

/// How often a client reads names with dead claims, each time that it cleans.
const ROUNDS: usize = 100;

/// Cleans until the client is dropped.
pub(crate) async fn run(client: Weak<TableClient>) {
    let Some(mut times) = client.upgrade().map(|client| CleaningTimes::of(&client.runtime)) else { return };
    while times.next().await {
        let Some(client) = client.upgrade() else { return };
        if let Err(failure) = clean(&client).await {
            tracing::debug!(%failure, "old rows of the lease table stay");
        }
    }
}

async fn clean(client: &TableClient) -> Result<(), Failure> {
    let ago = |duration| (-micros(duration)).into();
    let [sessions, names, watermark] = &client.statements.clean;
    let statements = vec![
        with(sessions, vec![ago(KEEP_SESSION)]),
        with(names, vec![ago(KEEP_NAME), ago(KEEP_WATERMARK)]),
        with(watermark, vec![ago(KEEP_WATERMARK)]),
    ];
    client.run_all(statements, Lane::Claims).await?;
    for _ in 0..ROUNDS {
        // A session is removed a day after its lease, so a claim without a session has been dead for as long as one whose own lease expired a
        // day ago.
        let dead = client.run(&client.statements.names_of_dead, vec![ago(KEEP_SESSION)]).await?;
        let names: Vec<_> = dead.iter().flatten().filter_map(|row| row.text(0)).collect();
        for name in &names {
            past_conflicts(&client.runtime, || remove_dead(client, name)).await?;
        }
        if names.len() < NAMES_AT_ONCE {
            break;
        }
    }
    Ok(())
}

/// Removes the claims of dead clients for a name that nobody asks for any more. A claim that is still there is granted if it is its turn.
async fn remove_dead(client: &TableClient, name: &Arc<str>) -> Result<(), Failure> {
    let mut transaction = client.database.begin().await?;
    let mut line = Line::read(client, &mut *transaction, name).await?;
    line.admit(client, None);
    line.commit(client, transaction, false).await.map(drop)
}
