//! Listing, inspection and eviction.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{ClaimInfo, ErrorKind, Eviction, HolderInfo, Info, Listing, Name, Page, Token};

use crate::claim::line::Line;
use crate::claim::record::mode_of;
use crate::client::TableClient;
use crate::database::Row;
use crate::failure::Failure;
use crate::statements::with;

/// Returns the claims of a lock.
pub(crate) async fn inspect(client: &TableClient, name: &Name) -> Result<Info, Failure> {
    let results = client.run(&client.statements.claims, vec![client.stored(name.as_str()).into()]).await?;
    let claims = results.iter().flatten().map(|row| read(client, row)).collect();
    Ok(Info::new(name.clone(), None, claims))
}

/// Returns a page of the locks that somebody holds or waits for.
pub(crate) async fn list(client: &TableClient, prefix: &str, page: &Page) -> Result<Listing, Failure> {
    let limit = page.limit.max(1);
    let after = page.after.as_ref().map_or_else(|| "".into(), |name| client.stored(name.as_str()));
    let values =
        vec![client.stored(prefix).into(), after.into(), i64::try_from(limit + 1).unwrap_or(i64::MAX).into()];
    let results = client.run(&client.statements.names, values).await?;
    let names: Vec<Arc<str>> = results.iter().flatten().filter_map(|row| row.text(0).cloned()).collect();
    let more = names.len() > limit;
    let names = &names[..names.len().min(limit)];
    let (Some(first), Some(last)) = (names.first(), names.last()) else { return Ok(Listing::default()) };
    let between = vec![Arc::clone(first).into(), Arc::clone(last).into()];
    let results = client.run(&client.statements.claims_of_names, between).await?;
    let mut resources: Vec<Info> = Vec::new();
    for row in results.iter().flatten() {
        let Some(stored) = row.text(0).filter(|stored| names.contains(stored)) else { continue };
        let Some(name) = client.plain(stored) else { continue };
        match resources.last_mut().filter(|info| info.name == name) {
            Some(info) => info.claims.push(read(client, row)),
            None => resources.push(Info::new(name, None, vec![read(client, row)])),
        }
    }
    let next = more.then(|| client.plain(last)).flatten();
    Ok(Listing::new(resources, next))
}

fn read(client: &TableClient, row: &Row) -> ClaimInfo {
    let text = |column| row.text(column).map(ToString::to_string).unwrap_or_default();
    let holder = HolderInfo::new(text(8), text(6), u32::try_from(row.int(7)).unwrap_or(0));
    let mut claim = ClaimInfo::new(holder, mode_of(row.int(2)));
    let since = row.int(5).unsigned_abs();
    claim.token = Some(row.int(3)).filter(|token| *token > 0).map(|token| Token::new(token.unsigned_abs()));
    claim.since_micros = since;
    claim.age = Duration::from_micros(client.runtime.clock().wall_micros().saturating_sub(since));
    claim.expires_in = claim.token.map(|_| Duration::from_micros(row.int(4).max(0).unsigned_abs()));
    claim.reason = row.text(9).map(ToString::to_string);
    claim.evicted = row.int(10) != 0;
    claim.detached = row.int(11) != 0;
    claim
}

/// Evicts the holder whose grant has `token`. Its session is told by a count in its row, which its next renewal reads before it confirms
/// anything. If the lock is not freed at once, the end of the holder's lease is written down first.
pub(crate) async fn evict(
    client: &TableClient,
    name: &Name,
    token: Token,
    how: &Eviction,
) -> Result<(), Failure> {
    let mut conflicts = 0;
    loop {
        match try_evict(client, name, token, how).await {
            Err(failure) if client.may_repeat(&failure, &mut conflicts).await => {}
            other => return other,
        }
    }
}

async fn try_evict(client: &TableClient, name: &Name, token: Token, how: &Eviction) -> Result<(), Failure> {
    let stored = client.stored(name.as_str());
    let reason = how.reason.as_deref().unwrap_or_default();
    let mut transaction = client.database.begin().await?;
    let mut line = Line::read(client, &mut *transaction, &stored).await?;
    let found = line.places.iter().find(|place| place.holds() && place.token.unsigned_abs() == token.get());
    let Some(place) = found.cloned() else {
        let message =
            format!("no holder of this lock has token {token}; look again, it may have been released");
        return Err(Failure::new(ErrorKind::Mismatch, message));
    };
    line.tell_evicted(client, &place, reason);
    if how.now {
        line.remove(client, &place.owner);
        line.admit(client, None);
    } else {
        // The session's row is locked by now, so no renewal comes in between.
        let text = &client.statements.evict[usize::from(place.row > 0)];
        line.write(with(
            text,
            vec![Arc::clone(&stored).into(), Arc::clone(&place.owner).into(), reason.into()],
        ));
    }
    line.commit(client, transaction, false).await.map(drop)
}
