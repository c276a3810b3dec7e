//! Evicting a holder.
//!
//! Three steps, in this order:
//! 1. a transaction marks the row (or, with `--now`, deletes it);
//! 2. a file `<key>.evicted` appears beside the owner's side file, and its bell rings. The owner looks for the file in each
//!    round of renewal, after noting the round's time and before confirming anything;
//! 3. a second transaction writes the row's last end, one full lease from now.
//!
//! A round that missed the file noted its time before step 2, so what it confirmed ends before the end written in step 3,
//! however long the evictor was stopped in between. Until step 3 the row lives on by its renewals: an evictor that dies half
//! way has evicted nobody, or only marked the owner.

use std::io;

use fencepost_core::{Error, Eviction, Name, Result, Token};

use crate::client::Client;
use crate::db::queue;
use crate::db::rows::{self, Row};
use crate::error::Failure;
use crate::process::eviction_file;
use crate::process::liveness::Liveness;
use crate::process::notify_fifo::{self, Notice};

/// Steps 1 and 2. Returns the row as it was before, if step 3 is needed.
pub(crate) fn mark(
    client: &Client,
    name: &Name,
    token: Token,
    how: &Eviction,
) -> Result<Option<Row>, Failure> {
    let resource = name.as_str();
    let time = client.now();
    let (row, to_wake) = client.database.write(|db| {
        let mut liveness = client.liveness(time);
        let found = rows::find_token(db, resource, token.get())?;
        let living = match found {
            Some(row) if !matches!(liveness.check(&row)?, Liveness::Dead) => Some(row),
            _ => None,
        };
        let Some(row) = living else {
            return Err(Error::no_grant(name.clone(), token).into());
        };
        if how.now {
            rows::delete(db, resource, row.seq, &row.id)?;
            let to_wake = queue::next(db, &mut liveness, resource)?;
            return Ok((row, to_wake));
        }
        rows::mark_evicted(db, resource, row.seq)?;
        // Readers may go that an upgrade has held up.
        let to_wake = if row.is_upgrading() { queue::next(db, &mut liveness, resource)? } else { Vec::new() };
        Ok((row, to_wake))
    })?;
    let told = notify_owner(client, &row, how.reason.as_deref().unwrap_or_default());
    client.wake(&to_wake);
    match told {
        Ok(()) => {}
        // The owner's next renewal finds that its row is gone.
        Err(error) if how.now => tracing::warn!(%error, "the owner could not be told why it was evicted"),
        // The row is marked.
        Err(error) => return Err(Failure::File(error).at(client.path()).unknown().into()),
    }
    // Other rows are gone, or have their end already. A fixed lease has none before its claim learns of the grant.
    Ok(Some(row).filter(|row| !how.now && !row.has_end()))
}

/// Step 3. The owner may have left by now, as it was told to.
pub(crate) fn end(client: &Client, name: &Name, marked: &Row) -> Result<(), Failure> {
    let time = client.now();
    client.database.write(|db| {
        if let Some(row) = rows::find(db, name.as_str(), &marked.id)?
            && row.until.is_none()
        {
            rows::set_until(db, name.as_str(), row.seq, time.boot.saturating_add(row.ttl), client.boot)?;
        }
        Ok(())
    })
}

/// Sends the message also if the file cannot be written.
fn notify_owner(client: &Client, row: &Row, by: &str) -> io::Result<()> {
    // A detached lease has no owner. Guards of other clients that are attached to it find out with their next renewal.
    let Some(process) = row.process.filter(|process| *process != client.key) else {
        client.evict(&row.id, by);
        return Ok(());
    };
    let written = eviction_file::write(&client.eviction_file(process), &eviction_file::line(&row.id, by));
    notify_fifo::send(&client.folder, process, Notice::Evicted(row.id));
    written
}
