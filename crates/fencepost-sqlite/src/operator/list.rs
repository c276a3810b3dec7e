//! Inspections and listings for operators.

use std::time::Duration;

use fencepost_core::{ClaimRecord, Info, Listing, Mode, Name, Page, Token};
use rusqlite::{Connection, params};

use crate::client::Client;
use crate::db::rows::{Row, columns, number};
use crate::error::Failure;
use crate::process::liveness::{Liveness, LivenessCheck};

/// One resource: its living claims, and its last token.
pub(crate) fn inspect(client: &Client, name: &Name) -> Result<Info, Failure> {
    let now = client.now();
    client.database.read(|db| one(db, &mut client.liveness(now), name))
}

/// A page of the resources that somebody alive holds or waits for.
pub(crate) fn list(client: &Client, prefix: &str, page: &Page) -> Result<Listing, Failure> {
    let now = client.now();
    client.database.read(|db| {
        let mut liveness = client.liveness(now);
        let mut listing = Listing::default();
        // Names that begin with the prefix stand together, since they are compared byte by byte.
        let after = page.after.as_ref().map_or("", |name| name.as_str());
        let sql = "SELECT DISTINCT resource FROM line WHERE resource >= ?1 AND resource > ?2 AND (seq > 0 OR token > 0) \
                   ORDER BY resource";
        let mut statement = db.prepare_cached(sql)?;
        let mut rows = statement.query(params![prefix, after])?;
        while let Some(row) = rows.next()? {
            let text: String = row.get(0)?;
            if !text.starts_with(prefix) {
                break;
            }
            if !listing.add(one(db, &mut liveness, &Name::new(&text)?)?, page) {
                break;
            }
        }
        Ok(listing)
    })
}

fn one(db: &Connection, liveness: &mut LivenessCheck<'_>, name: &Name) -> Result<Info, Failure> {
    let sql = concat!("SELECT ", columns!(), ", since, holder FROM line WHERE resource = ?1 ORDER BY seq");
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([name.as_str()])?;
    let mut info = Info::new(name.clone(), None, Vec::new());
    while let Some(columns) = rows.next()? {
        info.last_token = info.last_token.or(Row::last_token(columns)?.map(Token::new));
        let Some(row) = Row::read(columns)? else { continue };
        let Liveness::Alive { until, .. } = liveness.check(&row)? else { continue };
        let since_micros = number(columns.get(12)?);
        let left = until.map(|until| Duration::from_nanos(until.saturating_sub(liveness.now.boot)));
        let record = ClaimRecord::shown(columns.get_ref(13)?.as_bytes().unwrap_or_default());
        // A marked one still reads.
        let mode = if row.is_upgrading() { Mode::Shared } else { row.mode };
        let token = row.holds().then(|| Token::new(row.token));
        let mut claim = record.into_info(mode, token, liveness.now.wall, since_micros);
        claim.from_arrival = false;
        claim.expires_in = left.filter(|_| row.holds());
        claim.evicted = row.is_evicted();
        claim.detached = row.process.is_none();
        info.claims.push(claim);
    }
    // In the order of arrival holders stand first; a sort that keeps order says so in any case.
    info.claims.sort_by_key(|claim| !claim.holds());
    Ok(info)
}
