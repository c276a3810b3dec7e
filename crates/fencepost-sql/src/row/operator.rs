//! Listing, inspection and eviction, by the notes of claims.

use std::sync::Arc;

use fencepost_core::{
    ClaimInfo, ClaimRecord, Error, Eviction, Info, Listing, Mode, Name, Page, Result, Token,
};

use crate::database::Row;
use crate::failure::Failure;
use crate::row::client::RowClient;
use crate::row::statements::with;

/// Returns the claims of a lock.
pub(crate) async fn inspect(client: &RowClient, name: &Name) -> std::result::Result<Info, Failure> {
    let stored = client.stored(name.as_str());
    let results = client.run(vec![with(&client.statements.claims, vec![stored.into()])]).await?;
    let claims = sorted(results.iter().flatten().map(|row| read(client, row)).collect());
    Ok(Info::new(name.clone(), None, claims))
}

/// Returns a page of the locks that somebody holds or waits for.
pub(crate) async fn list(
    client: &RowClient,
    prefix: &str,
    page: &Page,
) -> std::result::Result<Listing, Failure> {
    let limit = page.limit.max(1);
    let after = page.after.as_ref().map_or_else(|| "".into(), |name| client.stored(name.as_str()));
    let values =
        vec![client.stored(prefix).into(), after.into(), i64::try_from(limit + 1).unwrap_or(i64::MAX).into()];
    let results = client.run(vec![with(&client.statements.names, values)]).await?;
    let names: Vec<Arc<str>> = results.iter().flatten().filter_map(|row| row.text(0).cloned()).collect();
    let more = names.len() > limit;
    let names = &names[..names.len().min(limit)];
    let (Some(first), Some(last)) = (names.first(), names.last()) else { return Ok(Listing::default()) };
    let between = vec![Arc::clone(first).into(), Arc::clone(last).into()];
    let results = client.run(vec![with(&client.statements.claims_of_names, between)]).await?;
    let mut resources: Vec<Info> = Vec::new();
    for row in results.iter().flatten() {
        let Some(stored) = row.text(0).filter(|stored| names.contains(stored)) else { continue };
        let Some(name) = client.plain(stored) else { continue };
        match resources.last_mut().filter(|info| info.name == name) {
            Some(info) => info.claims.push(read(client, row)),
            None => resources.push(Info::new(name, None, vec![read(client, row)])),
        }
    }
    resources.iter_mut().for_each(|info| info.claims = sorted(std::mem::take(&mut info.claims)));
    let next = more.then(|| client.plain(last)).flatten();
    Ok(Listing::new(resources, next))
}

/// Holders come first, then waiters in the order of their arrival.
fn sorted(mut claims: Vec<ClaimInfo>) -> Vec<ClaimInfo> {
    claims.sort_by_key(|claim| (!claim.holds(), claim.since_micros));
    claims
}

fn read(client: &RowClient, row: &Row) -> ClaimInfo {
    let mode = if row.int(2) == 0 { Mode::Exclusive } else { Mode::Shared };
    let token = Some(row.int(1)).filter(|token| *token > 0).map(|token| Token::new(token.unsigned_abs()));
    let record = ClaimRecord::read(row.text(3).map(|text| text.as_bytes()).unwrap_or_default());
    let evicted = row.int(4) != 0;
    let now = client.runtime.clock().wall_micros();
    ClaimRecord { evicted, ..record }.into_info(mode, token, now, 0)
}

/// Evicts the holder whose grant has `token`: it reads the mark at its next renewal. At once: its connection is ended, too.
pub(crate) async fn evict(client: &RowClient, name: &Name, token: Token, how: &Eviction) -> Result<()> {
    let failed = |failure: Failure| failure.on(client.engine).of(name.clone());
    let number = i64::try_from(token.get()).unwrap_or(i64::MAX);
    let find = with(&client.statements.find, vec![client.stored(name.as_str()).into(), number.into()]);
    let found = client.run(vec![find]).await.map_err(failed)?;
    let Some(note) = found.iter().flatten().next().map(|row| row.int(0)) else {
        return Err(Error::no_grant(name.clone(), token).on(client.engine));
    };
    let reason = how.reason.as_deref().unwrap_or_default();
    let mut statements = vec![with(&client.statements.evict, vec![note.into(), reason.into()])];
    if how.now {
        statements.push(with(&client.statements.terminate, vec![note.into()]));
    }
    client.run(statements).await.map(drop).map_err(failed)
}
