//! What operators ask of the table: inspection, listing and eviction.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{ClaimInfo, ClaimRecord, Error, Eviction, Info, Listing, Name, Page, Result, Token};

use crate::database::with;
use crate::database::{Lane, Row, Value};
use crate::driver::on_own_thread;
use crate::failure::{Failure, past_conflicts};
use crate::table::claim::line::{Conversion, Line};
use crate::table::claim::record::mode_of;
use crate::table::client::TableClient;

/// Returns a lock with its claims in order: holders first, then waiters as they came.
pub(crate) async fn inspect(client: &TableClient, name: &Name) -> std::result::Result<Info, Failure> {
    let statement = with(&client.statements.claims, vec![client.stored(name.as_str()).into()]);
    let results = client.run_all(vec![statement], Lane::Claims).await?;
    let claims = results.iter().flatten().map(read).collect();
    Ok(Info::new(name.clone(), None, claims))
}

/// Returns a page of the locks that somebody holds or waits for.
pub(crate) async fn list(
    client: &TableClient,
    prefix: &str,
    page: &Page,
) -> std::result::Result<Listing, Failure> {
    let texts = &client.statements;
    let limit = page.limit.max(1);
    let after = page.after.as_ref().map_or_else(|| "".into(), |name| client.stored(name.as_str()));
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let values: Vec<Value> = vec![client.stored(prefix).into(), after.into(), most.into()];
    let results = client.run_all(vec![with(&texts.names, values)], Lane::Claims).await?;
    let names: Vec<Arc<str>> = results.iter().flatten().filter_map(|row| row.text(0).cloned()).collect();
    let more = names.len() > limit;
    let names = &names[..names.len().min(limit)];
    let (Some(first), Some(last)) = (names.first(), names.last()) else { return Ok(Listing::default()) };
    let between = vec![Arc::clone(first).into(), Arc::clone(last).into()];
    let results = client.run_all(vec![with(&texts.claims_of_names, between)], Lane::Claims).await?;
    let mut resources: Vec<Info> = Vec::new();
    for row in results.iter().flatten() {
        let Some(stored) = row.text(0).filter(|stored| names.contains(stored)) else { continue };
        let Some(name) = client.plain(stored) else { continue };
        let claim = read(row);
        match resources.last_mut().filter(|info| info.name == name) {
            Some(info) => info.claims.push(claim),
            None => resources.push(Info::new(name, None, vec![claim])),
        }
    }
    let next = more.then(|| client.plain(last)).flatten();
    Ok(Listing::new(resources, next))
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
