//! How a claim is written in its row.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use fencepost_core::{Claim, Mode};

use crate::database::Value;
use crate::table::client::{TableClient, micros};

/// Returns the owner of a claim's row: its id.
pub(crate) fn owner(claim: &Claim) -> Arc<str> {
    claim.id.to_hex().into()
}

/// Returns the values of `name`, `owner` and the columns that a new row has.
pub(crate) fn new_row(client: &TableClient, claim: &Claim, session: i64) -> Vec<Value> {
    let want = claim.want();
    vec![
        client.stored(want.name.as_str()).into(),
        owner(claim).into(),
        want.mode.to_number().into(),
        session.into(),
        micros(claim.ttl()).into(),
        i64::from(!claim.renewed).into(),
        claim.record().as_str().into(),
    ]
}

/// Returns whether a claim's lease is that of its row, and not its session's. Then the renewal of the session does not confirm it.
pub(crate) fn has_own_lease(claim: &Claim) -> bool {
    claim.note.load(SeqCst) > 0
}

/// Notes that from now on a claim's lease is that of its row.
pub(crate) fn set_own_lease(claim: &Claim) {
    claim.note.store(1, SeqCst);
}

/// The number of a reader that waits to be the only holder.
pub(crate) const MARKED: i64 = 2;

/// Stands for any mode. No mode has this number: it would be that of 2^31 permits of 1.
pub(crate) const ANY_MODE: i64 = -i64::MAX;

pub(crate) fn mode_of(number: i64) -> Mode {
    if number == MARKED { Mode::Shared } else { Mode::from_number(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_survive_the_table() {
        for mode in [
            Mode::Exclusive,
            Mode::Shared,
            Mode::Permits { n: 1, of: 1 },
            Mode::Permits { n: 1 << 31, of: 1 << 31 },
            Mode::Permits { n: u32::MAX, of: u32::MAX },
        ] {
            assert_eq!(mode_of(mode.to_number()), mode);
            assert_ne!(mode.to_number(), ANY_MODE);
        }
    }
}
