//! The renewal of a session. It also reads the rows of the session's claims: an operator may have deleted one by hand.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::database::with;
use crate::database::{Lane, Results, Statement};
use crate::dialect::fill;
use crate::failure::Failure;
use crate::table::claim::record::owner;
use crate::table::claim::waiter::Waiter;
use crate::table::client::{TableClient, micros};

/// The longest list of names in a statement's text, in bytes: servers limit its length.
const MAX_LIST: usize = 1024 * 1024;

/// The findings of a renewal.
pub(crate) struct Found {
    /// One more than the number of evictions.
    pub(crate) evictions: i64,
    /// The claims without a row, of those that were looked for.
    pub(crate) missing: Vec<Arc<Waiter>>,
}

/// Renews a session in one round trip, which also looks for the rows of `claims`. `None`: the session's row is gone.
pub(crate) async fn renew(
    client: &TableClient,
    session: i64,
    ttl: Duration,
    mut claims: Vec<Arc<Waiter>>,
) -> Result<Option<Found>, Failure> {
    let stored = |waiter: &Arc<Waiter>| client.stored(waiter.claim.want().name.as_str());
    let values = |lines: &str| vec![session.into(), micros(ttl).into(), lines.into()];
    let texts = &client.statements;
    let Some(owners) = &texts.owners else {
        let names: Vec<_> = claims.iter().map(stored).collect();
        let results =
            client.run_all(vec![with(&texts.renew, values(&names.join("\n")))], Lane::Renewals).await?;
        let Some(row) = results.first().and_then(|rows| rows.first()) else { return Ok(None) };
        let owners: HashSet<&str> = row.text(1).into_iter().flat_map(|owners| owners.split(',')).collect();
        claims.retain(|waiter| !owners.contains(&*owner(&waiter.claim)));
        return Ok(Some(Found { evictions: row.int(0), missing: claims }));
    };
    let lists = lists(&claims.iter().map(stored).collect::<Vec<_>>());
    // The rows are read first. An eviction that removed one of them is then counted in the renewal's reply.
    let read =
        lists.iter().map(|list| Statement::new(fill(owners, &[list, &session.to_string()]), Vec::new()));
    let statements = read.chain([with(&texts.renew, values(""))]).collect();
    let mut results: Results = client.run_all(statements, Lane::Renewals).await?;
    let Some(row) = results.pop().and_then(|mut rows| rows.pop()) else { return Ok(None) };
    let owners: HashSet<&str> =
        results.iter().flatten().filter_map(|row| row.text(0)).map(|text| &**text).collect();
    claims.retain(|waiter| !owners.contains(&*owner(&waiter.claim)));
    Ok(Some(Found { evictions: row.int(0), missing: claims }))
}

/// Writes names as lists for a statement's text.
fn lists(names: &[Arc<str>]) -> Vec<String> {
    let mut lists: Vec<String> = Vec::new();
    for name in names {
        let hex = name.bytes().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        match lists.last_mut().filter(|list| list.len() + hex.len() < MAX_LIST) {
            Some(list) => {
                let _ = write!(list, ", x'{hex}'");
            }
            None => lists.push(format!("x'{hex}'")),
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hexadecimal_digits_in_lists_of_limited_length() {
        let names: Vec<Arc<str>> = (0..3_000).map(|_| "a'".repeat(200).into()).collect();
        let lists = lists(&names);
        assert!(lists.len() == 3 && lists.iter().all(|list| list.len() < MAX_LIST + 1_000));
        assert!(lists.iter().all(|list| list.starts_with("x'61276127") && list.ends_with("6127'")));
        assert_eq!(lists.iter().map(|list| list.split(", ").count()).sum::<usize>(), 3_000);
    }
}
