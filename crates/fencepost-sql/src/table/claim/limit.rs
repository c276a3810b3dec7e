//! Stored limits of permits: a column of the lock's own row, which is locked by each transaction that judges a line of permits.

use std::sync::Arc;

use fencepost_core::{Mode, Name, Result};

use crate::database::with;
use crate::database::{Row, Value};
use crate::driver::on_own_thread;
use crate::failure::{Failure, past_conflicts};
use crate::table::claim::line::{Line, LineClaimant};
use crate::table::client::TableClient;

/// Reads the limit in a column of a row.
pub(crate) fn limit_in(row: &Row, column: usize) -> Option<u32> {
    row.optional(column).and_then(|limit| u32::try_from(limit).ok())
}

/// Returns the stored limit.
pub(crate) async fn stored(client: &TableClient, name: &Name) -> Result<Option<u32>> {
    let key = vec![client.stored(name.as_str()).into()];
    let results = client.run(&client.statements.stored_permits, key).await;
    let results = results.map_err(|failure| failure.on(client.engine))?;
    Ok(results.first().and_then(|rows| rows.first()).and_then(|row| limit_in(row, 0)))
}

/// Stores the limit, or forgets it.
pub(crate) async fn set(client: &Arc<TableClient>, name: &Name, limit: Option<u32>) -> Result<()> {
    let (own, stored) = (Arc::clone(client), client.stored(name.as_str()));
    // A transaction that has locked the row of the name holds up all who want the lock.
    let work = async move { past_conflicts(&own.runtime, || try_set(&own, &stored, limit)).await };
    let set = on_own_thread(&client.runtime, work).await;
    set.map_err(|failure| failure.on(client.engine).of(name.clone()))
}

async fn try_set(
    client: &TableClient,
    name: &Arc<str>,
    limit: Option<u32>,
) -> std::result::Result<(), Failure> {
    let mut transaction = client.database.begin().await?;
    let mut line = Line::read(client, &mut *transaction, name).await?;
    let values = vec![Arc::clone(name).into(), Value::Int(limit.map(i64::from))];
    line.write(with(&client.statements.set_permits, values));
    line.set_limit(client, limit);
    line.commit(client, transaction, false).await.map(drop)
}

impl Line {
    /// Judges the line by another limit: grants the lock to all who fit now. A waiter for more permits than the limit loses its row, so it
    /// blocks no other claim. It is told, and its next claim is refused.
    fn set_limit(&mut self, client: &TableClient, limit: Option<u32>) {
        self.limit = limit;
        for claimant in &mut self.claimants {
            claimant.judge(limit);
        }
        let too_large = |claimant: &&LineClaimant| !claimant.holds() && !claimant.mode.is_possible();
        let too_large: Vec<LineClaimant> = self.claimants.iter().filter(too_large).cloned().collect();
        for claimant in too_large {
            self.wake(client, &claimant);
            self.remove(client, &claimant.owner);
        }
        self.admit(client, None);
    }

    /// Returns the limit, if a claim asks for more permits.
    pub(crate) fn limit_below(&self, mode: Mode) -> Option<u32> {
        self.limit.filter(|_| !mode.limited(self.limit).is_possible())
    }
}
