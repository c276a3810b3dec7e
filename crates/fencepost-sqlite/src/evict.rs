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
//! way has evicted nobody, or only told the owner.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use fencepost_core::{Error, ErrorKind, Eviction, Name, Result, Token};
use nix::libc;

use crate::bell::{self, Ring};
use crate::census::Standing;
use crate::error::Trouble;
use crate::line;
use crate::row::{self, Row};
use crate::shared::Shared;

/// The longest part of a summons that is read, in bytes.
const SUMMONS: u64 = 1 << 20;

/// `told` is what of it is done: a call that found the database busy is made again, and by then the owner may have gone, as it was
/// told to.
pub(crate) fn evict(
    shared: &Shared,
    name: &Name,
    token: Token,
    how: &Eviction,
    told: &mut Option<Row>,
) -> Result<(), Trouble> {
    let now = how.now;
    let row = match told {
        Some(row) => row,
        None => told.insert(tell(shared, name, token, how)?),
    };
    if !now && row.process.is_some() && !row.is_fixed() {
        let time = shared.now();
        shared.store.write(|db| {
            if let Some(row) = row::find(db, name.as_str(), &row.id)?
                && row.until.is_none()
            {
                row::set_until(db, name.as_str(), row.seq, time.boot.saturating_add(row.ttl), shared.boot)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Marks or deletes the row, and tells its owner.
fn tell(shared: &Shared, name: &Name, token: Token, how: &Eviction) -> Result<Row, Trouble> {
    let resource = name.as_str();
    let time = shared.now();
    let (row, turns) = shared.store.write(|db| {
        let mut census = shared.census(time);
        let found = row::find_token(db, resource, token.get())?;
        let living = match found {
            Some(row) if !matches!(census.judge(&row)?, Standing::Dead) => Some(row),
            _ => None,
        };
        let Some(row) = living else {
            let message = format!(
                "no holder of this lock has token {token}; look again who holds it, it may have been released"
            );
            return Err(Error::new(ErrorKind::Mismatch, message).of(name.clone()).into());
        };
        if how.now {
            row::delete(db, resource, row.seq, &row.id)?;
            let turns = line::next(db, &mut census, resource)?;
            return Ok((row, turns));
        }
        row::mark_evicted(db, resource, row.seq)?;
        Ok((row, Vec::new()))
    })?;
    summon(shared, &row, how.reason.as_deref().unwrap_or_default())?;
    shared.ring(&turns);
    Ok(row)
}

fn summon(shared: &Shared, row: &Row, by: &str) -> Result<(), Trouble> {
    let Some(process) = row.process else { return Ok(()) };
    if process == shared.key {
        shared.slots.evict(&row.id, by);
        return Ok(());
    }
    write_summons(&shared.summons(process), &summons_line(&row.id, by))?;
    bell::ring(&shared.folder, process, Ring::Evicted(row.id));
    Ok(())
}

/// Makes the file by which a process is told to look at its rows. `line` is what it says: the rows decide who is evicted.
pub(crate) fn write_summons(path: &Path, line: &str) -> io::Result<()> {
    let mut options = File::options();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options.open(path)?.write_all(line.as_bytes())
}

/// Returns what a summons says; nothing if it cannot be read.
pub(crate) fn read_summons(path: &Path) -> String {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut said = Vec::new();
    let read = options.open(path).and_then(|file| file.take(SUMMONS).read_to_end(&mut said));
    read.map(|_| String::from_utf8_lossy(&said).into_owned()).unwrap_or_default()
}

/// A summons' line: the claim, then who evicts it and why.
fn summons_line(id: &[u8; 16], by: &str) -> String {
    format!("{:032x} {by}\n", u128::from_be_bytes(*id))
}

/// Returns who evicts this claim and why, as the summons says it.
pub(crate) fn summoned_by<'a>(summons: &'a str, id: &[u8; 16]) -> &'a str {
    let id = format!("{:032x} ", u128::from_be_bytes(*id));
    summons.lines().find_map(|line| line.strip_prefix(&id)).unwrap_or_default()
}
