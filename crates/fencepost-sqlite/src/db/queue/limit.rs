//! The stored limit of a resource's permits, as admission reads it.

use fencepost_core::Mode;
use rusqlite::Connection;

use super::{Outcome, Request, Scan};
use crate::db::limits;
use crate::db::rows;
use crate::error::Failure;

impl Scan<'_> {
    /// Returns the mode to judge a claim by. Reads the limit if it is needed, once.
    pub(super) fn limited(&mut self, db: &Connection, mode: Mode) -> Result<Mode, Failure> {
        if !matches!(mode, Mode::Permits { .. }) {
            return Ok(mode);
        }
        let limit = match self.limit {
            Some(limit) => limit,
            None => *self.limit.insert(limits::find(db, self.resource)?),
        };
        Ok(mode.limited(limit))
    }

    /// Refuses the claim that asks, which may wait in line.
    pub(super) fn refuse(&self, db: &Connection, request: &Request<'_>) -> Result<Outcome, Failure> {
        if let Some(own) = &self.own {
            rows::delete(db, self.resource, own.seq, &request.id)?;
        }
        Ok(Outcome::Over(self.limit.flatten().unwrap_or_default()))
    }
}
