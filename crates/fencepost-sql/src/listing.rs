//! Listing and inspection of locks whose claims are rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use fencepost_core::{ClaimInfo, Error, Info, Listing, Name, Page};

use crate::database::with;
use crate::database::{Answer, Results, Row, Statement, Value};
use crate::failure::Failure;

/// A client whose claims are rows. The first column is the name.
pub(crate) trait Claims: Sync {
    /// The prefix of the client's names in the table.
    fn prefix(&self) -> &str;

    /// The statements that select the claims of a name, a page of names, and the claims of the names from one to another.
    fn texts(&self) -> [&Arc<str>; 3];

    /// Runs a statement.
    fn ask(&self, statement: Statement) -> Answer<'_, Results>;

    /// Reads a row.
    fn read(&self, row: &Row) -> ClaimInfo;

    /// Puts the claims of a lock in order: holders first, then waiters.
    fn sort(&self, claims: &mut Vec<ClaimInfo>);

    /// Returns the name of a lock in the table.
    fn stored(&self, name: &str) -> Arc<str> {
        if self.prefix().is_empty() { name.into() } else { [self.prefix(), name].concat().into() }
    }

    /// Returns the name of a lock without the prefix.
    fn plain(&self, stored: &str) -> Option<Name> {
        Name::new(stored.strip_prefix(self.prefix())?).ok()
    }
}

/// Returns a lock with its claims in order: holders first, then waiters as they came.
#[must_use]
pub fn in_order(name: Name, mut claims: Vec<ClaimInfo>) -> Info {
    claims.sort_by_key(|claim| (!claim.holds(), claim.since_micros));
    Info::new(name, None, claims)
}

/// Returns a page of the locks that were found, by name. `more`: others follow.
///
/// # Errors
/// [`is_invalid`](Error::is_invalid) for a text that is no name.
pub fn page_of(found: BTreeMap<String, Vec<ClaimInfo>>, page: &Page, more: bool) -> Result<Listing, Error> {
    let found = found.into_iter().take(page.limit);
    let resources = found.map(|(name, claims)| Ok(in_order(Name::new(&name)?, claims)));
    let resources = resources.collect::<Result<Vec<_>, Error>>()?;
    let next = more.then(|| resources.last().map(|info| info.name.clone())).flatten();
    Ok(Listing::new(resources, next))
}

/// Returns the claims of a lock.
pub(crate) async fn inspect(client: &impl Claims, name: &Name) -> Result<Info, Failure> {
    let [claims, ..] = client.texts();
    let results = client.ask(with(claims, vec![client.stored(name.as_str()).into()])).await?;
    let mut claims = results.iter().flatten().map(|row| client.read(row)).collect();
    client.sort(&mut claims);
    Ok(Info::new(name.clone(), None, claims))
}

/// Returns a page of the locks that somebody holds or waits for.
pub(crate) async fn list(client: &impl Claims, prefix: &str, page: &Page) -> Result<Listing, Failure> {
    let [_, names, claims] = client.texts();
    let limit = page.limit.max(1);
    let after = page.after.as_ref().map_or_else(|| "".into(), |name| client.stored(name.as_str()));
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let values: Vec<Value> = vec![client.stored(prefix).into(), after.into(), most.into()];
    let results = client.ask(with(names, values)).await?;
    let names: Vec<Arc<str>> = results.iter().flatten().filter_map(|row| row.text(0).cloned()).collect();
    let more = names.len() > limit;
    let names = &names[..names.len().min(limit)];
    let (Some(first), Some(last)) = (names.first(), names.last()) else { return Ok(Listing::default()) };
    let between = vec![Arc::clone(first).into(), Arc::clone(last).into()];
    let results = client.ask(with(claims, between)).await?;
    let mut resources: Vec<Info> = Vec::new();
    for row in results.iter().flatten() {
        let Some(stored) = row.text(0).filter(|stored| names.contains(stored)) else { continue };
        let Some(name) = client.plain(stored) else { continue };
        let claim = client.read(row);
        match resources.last_mut().filter(|info| info.name == name) {
            Some(info) => info.claims.push(claim),
            None => resources.push(Info::new(name, None, vec![claim])),
        }
    }
    resources.iter_mut().for_each(|info| client.sort(&mut info.claims));
    let next = more.then(|| client.plain(last)).flatten();
    Ok(Listing::new(resources, next))
}
