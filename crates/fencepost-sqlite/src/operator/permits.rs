//! Stored limits of permits.

use fencepost_core::Name;

use crate::client::Client;
use crate::db::{limits, queue};
use crate::error::Failure;

/// Returns the limit.
pub(crate) fn find(client: &Client, name: &Name) -> Result<Option<u32>, Failure> {
    client.database.read(|db| Ok(limits::find(db, name.as_str())?))
}

/// Stores the limit, or forgets it, and wakes the claims that may go now.
pub(crate) fn set(client: &Client, name: &Name, limit: Option<u32>) -> Result<(), Failure> {
    let time = client.now();
    let to_wake = client.database.write(|db| {
        limits::set(db, name.as_str(), limit)?;
        queue::next(db, &mut client.liveness(time), name.as_str())
    })?;
    client.wake(&to_wake);
    Ok(())
}
