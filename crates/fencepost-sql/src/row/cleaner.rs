//! Removes the tokens of names that nobody has used for 30 days.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::database::Value;
use crate::database::with;
use crate::failure::Failure;
use crate::row::client::RowClient;
use crate::row::server::RowServer;
use crate::row::statements::OldTokens;

/// How often a client cleans.
const INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// How long the client pauses after each page and each removal: claims come first.
const PAUSE: Duration = Duration::from_millis(10);

/// Cleans until the client is dropped.
pub(super) async fn run<S: RowServer>(client: Weak<RowClient<S>>) {
    loop {
        let Some(known) = client.upgrade().filter(|client| client.statements.old.is_some()) else { return };
        let clock = known.runtime.clock().clone();
        drop(known);
        if let Err(failure) = clean(&client).await {
            tracing::debug!(%failure, "old tokens of row locks stay");
        }
        clock.sleep_until(clock.now() + INTERVAL).await;
        if clock.is_stopped() {
            return;
        }
    }
}

async fn clean<S: RowServer>(client: &Weak<RowClient<S>>) -> Result<(), Failure> {
    let mut last = Arc::<str>::from("");
    loop {
        let Some(client) = client.upgrade().filter(|client| !client.runtime.clock().is_stopped()) else {
            return Ok(());
        };
        let Some([page, ..]) = &client.statements.old else { return Ok(()) };
        let read = with(page, vec![Value::from(Arc::clone(&last))]);
        let rows = client.database.run(vec![read]).await?.pop().unwrap_or_default();
        let is_last = rows.len() < OldTokens::PAGE;
        for row in &rows {
            let Some(name) = row.text(0) else { continue };
            last = Arc::clone(name);
            if row.int(1) == 1 {
                remove(&client, name).await?;
                pause(&client).await;
            }
        }
        if is_last {
            return Ok(());
        }
        pause(&client).await;
    }
}

/// Removes the token of a name, unless a transaction has its row locked: that of a caller has no note.
async fn remove<S: RowServer>(client: &RowClient<S>, name: &Arc<str>) -> Result<(), Failure> {
    let Some([_, free, remove]) = &client.statements.old else { return Ok(()) };
    let statement = |text| with(text, vec![Value::from(Arc::clone(name))]);
    // Each is a transaction of its own. The first one never waits.
    let is_free = client.database.run(vec![statement(free)]).await?.iter().any(|rows| !rows.is_empty());
    match is_free {
        true => match client.database.run(vec![statement(remove)]).await {
            // Another transaction has locked it meanwhile.
            Err(failure) if failure.conflict => Ok(()),
            removed => removed.map(drop),
        },
        false => Ok(()),
    }
}

async fn pause<S: RowServer>(client: &RowClient<S>) {
    let clock = client.runtime.clock();
    clock.sleep_until(clock.now() + PAUSE).await;
}
