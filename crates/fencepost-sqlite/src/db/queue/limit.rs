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

    /// Refuses the claim that asks, which may wait in the queue.
    pub(super) fn refuse(&self, db: &Connection, request: &Request<'_>) -> Result<Outcome, Failure> {
        if let Some(own) = &self.own {
            rows::delete(db, self.resource, own.seq, &request.id)?;
        }
        Ok(Outcome::AboveLimit(self.limit.flatten().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClaimRef, attempt, next, withdraw};
    use super::*;
    use crate::testing::TestDb;

    fn ask(test: &TestDb, request: &Request<'_>) -> Outcome {
        test.now(|db, liveness| Ok(attempt(db, liveness, request)?.0))
    }

    fn granted(outcome: &Outcome) {
        assert!(matches!(outcome, Outcome::Granted { .. }), "{outcome:?}");
    }

    fn blocked(outcome: &Outcome) -> Option<i64> {
        let Outcome::Blocked { seq, .. } = outcome else { panic!("{outcome:?}") };
        *seq
    }

    fn leave(test: &TestDb, id: u8) -> Vec<ClaimRef> {
        test.now(|db, liveness| withdraw(db, liveness, "r", &[id; 16], None)).next
    }

    fn ids(claims: &[ClaimRef]) -> Vec<u8> {
        claims.iter().map(|claim| claim.id[0]).collect()
    }

    fn limit(test: &TestDb, permits: u32) -> Vec<u8> {
        ids(&test.now(|db, liveness| {
            limits::set(db, "r", Some(permits))?;
            next(db, liveness, "r")
        }))
    }

    /// A holder behind its row would not be counted for it once the limit grows again.
    #[test]
    fn a_row_over_the_limit_is_removed_before_anybody_is_granted() {
        let p = |n| Mode::Permits { n, of: 9 };
        let test = TestDb::new();
        granted(&ask(&test, &test.request(1, p(1))));
        let large = blocked(&ask(&test, &test.request(2, p(9))));
        // The claim that finds it is granted, or is blocked.
        for join in [true, false] {
            test.now(|db, _| Ok(limits::set(db, "r", Some(2))?));
            let request = Request { join, ..test.request(3, p(1 + u32::from(!join))) };
            let (outcome, to_wake) = test.now(|db, liveness| attempt(db, liveness, &request));
            match join {
                true => granted(&outcome),
                false => assert_eq!(blocked(&outcome), None),
            }
            assert_eq!(ids(&to_wake), [2], "it is told");
            limit(&test, 9);
            let again = Request { seq: large, ..test.request(2, p(9)) };
            assert_eq!(ask(&test, &again), Outcome::Gone);
            leave(&test, 3);
            blocked(&ask(&test, &test.request(2, p(9))));
        }
        // A client that sets the limit tells it, too. Then exclusive claims take their turn.
        blocked(&ask(&test, &test.request(4, Mode::Exclusive)));
        assert_eq!(limit(&test, 2), [2]);
        assert_eq!(ids(&leave(&test, 1)), [4]);
        granted(&ask(&test, &test.request(4, Mode::Exclusive)));
    }
}
