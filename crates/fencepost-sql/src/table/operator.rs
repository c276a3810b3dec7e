//! How claims are listed, and eviction.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{ClaimInfo, ClaimRecord, Error, Eviction, Name, Result, Token};

use crate::database::with;
use crate::database::{Answer, Lane, Results, Row, Statement};
use crate::driver::on_own_thread;
use crate::failure::{Failure, past_conflicts};
use crate::listing::Claims;
use crate::table::claim::line::{Conversion, Line};
use crate::table::claim::record::mode_of;
use crate::table::client::TableClient;

impl Claims for TableClient {
    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn texts(&self) -> [&Arc<str>; 3] {
        [&self.statements.claims, &self.statements.names, &self.statements.claims_of_names]
    }

    fn ask(&self, statement: Statement) -> Answer<'_, Results> {
        Box::pin(self.run_all(vec![statement], Lane::Claims))
    }

    fn read(&self, row: &Row) -> ClaimInfo {
        read(row)
    }

    /// The statements return them in order.
    fn sort(&self, _: &mut Vec<ClaimInfo>) {}
}

fn read(row: &Row) -> ClaimInfo {
    let record = ClaimRecord::shown(row.text(6).map(|text| text.as_bytes()).unwrap_or_default());
    let token = Some(row.int(3)).filter(|token| *token > 0).map(|token| Token::new(token.unsigned_abs()));
    let mut claim = record.into_info(mode_of(row.int(2)), token, 0, row.int(5).unsigned_abs());
    claim.from_arrival = false;
    // The server's clock measures both, so the age is right for a client whose clock is wrong.
    claim.age = Duration::from_micros(row.int(10).max(0).unsigned_abs());
    // An end that is further away than the lease is long comes from an earlier clock. The next claim cuts it.
    let left = row.int(4).clamp(0, row.int(11).max(0));
    claim.expires_in = claim.token.map(|_| Duration::from_micros(left.unsigned_abs()));
    claim.evicted = row.int(7) != 0;
    claim.detached = row.int(8) != 0;
    claim
}

/// Evicts the holder whose grant has `token`. Its session is told by a count in its row, which its next renewal reads before it confirms
/// anything. If the lock is not freed at once, the end of the holder's lease is written down first.
pub(crate) async fn evict(
    client: &Arc<TableClient>,
    name: &Name,
    token: Token,
    how: &Eviction,
) -> Result<()> {
    let (own, stored, how) = (Arc::clone(client), client.stored(name.as_str()), how.clone());
    // A transaction that has locked the row of the name holds up all who want the lock. A waiter that evicts polls this only while it rests.
    let work = async move { past_conflicts(&own.runtime, || try_evict(&own, &stored, token, &how)).await };
    match on_own_thread(&client.runtime, work).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::no_grant(name.clone(), token).on(client.engine)),
        Err(failure) => Err(failure.on(client.engine).of(name.clone())),
    }
}

/// `false`: no grant has the token.
async fn try_evict(
    client: &TableClient,
    stored: &Arc<str>,
    token: Token,
    how: &Eviction,
) -> std::result::Result<bool, Failure> {
    let reason = how.reason.as_deref().unwrap_or_default();
    let mut transaction = client.database.begin().await?;
    let mut line = Line::read(client, &mut *transaction, stored).await?;
    let found = line
        .claimants
        .iter()
        .find(|claimant| claimant.holds() && claimant.token.unsigned_abs() == token.get());
    let Some(claimant) = found.cloned() else {
        // The dead may have been removed. A transaction that is not committed would also cost its connection.
        line.admit(client, None);
        return line.commit(client, transaction, false).await.map(|_| false);
    };
    line.tell_evicted(client, &claimant, reason);
    if how.now {
        line.remove(client, &claimant.owner);
        line.admit(client, None);
    } else {
        if claimant.marked {
            line.convert(client, &claimant.owner, Conversion::Shared { token: claimant.token });
            line.admit(client, None);
        }
        // When this statement runs, the one before it has locked the session's row, so no renewal comes in between.
        let text = &client.statements.evict[usize::from(claimant.row > 0)];
        line.write(with(
            text,
            vec![Arc::clone(stored).into(), Arc::clone(&claimant.owner).into(), reason.into()],
        ));
    }
    line.commit(client, transaction, false).await.map(|_| true)
}
