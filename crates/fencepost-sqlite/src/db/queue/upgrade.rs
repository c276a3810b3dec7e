//! Readers that become writers, and writers that become readers. Each function is the body of one write transaction.
//!
//! A reader that waits to be the only holder is marked: its row counts as an exclusive one, so nobody is admitted meanwhile.

use rusqlite::Connection;

use super::{ClaimRef, Scan, next};
use crate::db::rows::{self, Row};
use crate::error::Failure;
use crate::process::liveness::{Liveness, LivenessCheck};

/// The outcome of an upgrade.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Upgraded {
    /// The claim is the only holder. A repeated request has the same token as the first one.
    Granted {
        token: u64,
    },
    /// These other claims hold the resource, each until then unless it is renewed.
    Blocked {
        others: Vec<(Row, Option<u64>)>,
    },
    /// Another holder is marked.
    Conflict,
    Gone,
}

/// Makes a holder exclusive once it is alone. Until then it is marked, unless it does not `join`.
pub(crate) fn upgrade(
    db: &Connection,
    liveness: &mut LivenessCheck<'_>,
    resource: &str,
    id: &[u8; 16],
    join: bool,
) -> Result<Upgraded, Failure> {
    let mut scan = Scan::new(resource, Some(*id), false, false);
    // Waiters are not admitted, so only holders block it.
    scan.run(db, liveness, |_, _| false)?;
    scan.repair(db, liveness)?;
    let Some(own) = live_holder(liveness, scan.own.as_ref())? else { return Ok(Upgraded::Gone) };
    if own.is_exclusive() && !own.is_upgrading() {
        return Ok(Upgraded::Granted { token: own.token });
    }
    if scan.blockers.iter().any(|(row, _)| row.is_upgrading()) {
        return Ok(Upgraded::Conflict);
    }
    if !scan.blockers.is_empty() {
        if join != own.is_upgrading() {
            if join {
                rows::mark_upgrading(db, resource, own.seq)?
            } else {
                rows::make_shared(db, resource, own.seq, own.token)?
            }
        }
        return Ok(Upgraded::Blocked { others: scan.blockers });
    }
    let token = liveness.now.wall.max(scan.greatest_token(db)? + 1);
    rows::make_exclusive(db, resource, own.seq, token)?;
    rows::set_last_token(db, resource, token, scan.last_token.is_some())?;
    Ok(Upgraded::Granted { token })
}

/// Makes a holder shared, with this token and without a mark, and returns the claims whose turn it is then. `None`: it holds no more.
pub(crate) fn downgrade(
    db: &Connection,
    liveness: &mut LivenessCheck<'_>,
    resource: &str,
    id: &[u8; 16],
    token: u64,
) -> Result<Option<Vec<ClaimRef>>, Failure> {
    let row = rows::find(db, resource, id)?;
    let Some(own) = live_holder(liveness, row.as_ref())? else { return Ok(None) };
    if !own.is_exclusive() {
        return Ok(Some(Vec::new()));
    }
    rows::make_shared(db, resource, own.seq, token)?;
    Ok(Some(next(db, liveness, resource)?))
}

fn live_holder<'a>(
    liveness: &mut LivenessCheck<'_>,
    row: Option<&'a Row>,
) -> Result<Option<&'a Row>, Failure> {
    let Some(row) = row.filter(|row| row.holds() && !row.is_evicted()) else { return Ok(None) };
    Ok(if liveness.check(row)? == Liveness::Dead { None } else { Some(row) })
}

impl Scan<'_> {
    /// The marked holder, if it is the only one: it is its turn.
    pub(super) fn upgrader(&self) -> Option<ClaimRef> {
        self.upgrading.filter(|_| self.held.holders() == 1)
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Mode;

    use super::*;
    use crate::db::queue::{self, Outcome};
    use crate::testing::{SECOND, TestDb};

    fn read(test: &TestDb, id: u8) -> u64 {
        match test.now(|db, liveness| queue::attempt(db, liveness, &test.request(id, Mode::Shared))).0 {
            Outcome::Granted { token, .. } => token,
            other => panic!("{other:?}"),
        }
    }

    fn ask(test: &TestDb, id: u8, join: bool) -> Upgraded {
        test.now(|db, liveness| upgrade(db, liveness, "r", &[id; 16], join))
    }

    fn is_admitted(test: &TestDb, id: u8) -> bool {
        let request = queue::Request { join: false, ..test.request(id, Mode::Shared) };
        let granted = test.now(|db, liveness| queue::attempt(db, liveness, &request)).0;
        if let Outcome::Granted { .. } = granted {
            test.now(|db, liveness| queue::withdraw(db, liveness, "r", &[id; 16], None));
            return true;
        }
        false
    }

    #[test]
    fn a_marked_reader_admits_nobody_and_is_granted_alone() {
        let test = TestDb::new();
        let tokens = [1, 2].map(|id| read(&test, id));
        assert!(matches!(ask(&test, 1, false), Upgraded::Blocked { .. }));
        assert!(is_admitted(&test, 3), "no mark is left by a request that does not wait");
        assert!(matches!(ask(&test, 1, true), Upgraded::Blocked { others } if others.len() == 1));
        assert!(!is_admitted(&test, 3));
        assert_eq!(ask(&test, 2, true), Upgraded::Conflict);
        let left = test.now(|db, liveness| queue::withdraw(db, liveness, "r", &[2; 16], None));
        assert_eq!(left.next.iter().map(|claim| claim.id).collect::<Vec<_>>(), [[1; 16]], "it is its turn");
        let Upgraded::Granted { token } = ask(&test, 1, true) else { panic!("it is alone") };
        assert!(tokens.iter().all(|before| token > *before));
        assert_eq!(ask(&test, 1, true), Upgraded::Granted { token }, "a repeated request draws no token");
        assert!(!is_admitted(&test, 3));
        for _ in 0..2 {
            let next = test.now(|db, liveness| downgrade(db, liveness, "r", &[1; 16], tokens[0]));
            assert_eq!(next, Some(Vec::new()));
            assert!(is_admitted(&test, 3));
        }
        let row = test.now(|db, _| Ok(rows::find(db, "r", &[1; 16])?)).expect("it holds");
        assert_eq!((row.mode, row.token), (Mode::Shared, tokens[0]), "the token that its holder knows");
    }

    #[test]
    fn a_downgrade_tells_the_readers_at_the_head() {
        let test = TestDb::new();
        test.now(|db, liveness| queue::attempt(db, liveness, &test.request(1, Mode::Exclusive)));
        for (id, mode) in [(2, Mode::Shared), (3, Mode::Shared), (4, Mode::Exclusive), (5, Mode::Shared)] {
            test.now(|db, liveness| queue::attempt(db, liveness, &test.request(id, mode)));
        }
        let next = test.now(|db, liveness| downgrade(db, liveness, "r", &[1; 16], 7)).expect("it holds");
        assert_eq!(next.iter().map(|claim| claim.id[0]).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(test.now(|db, liveness| downgrade(db, liveness, "r", &[2; 16], 7)), None, "it waits");
    }

    #[test]
    fn a_mark_ends_with_its_lease_and_its_eviction() {
        let test = TestDb::new();
        read(&test, 1);
        let fixed = queue::Request { fixed: true, ttl: SECOND, ..test.request(2, Mode::Shared) };
        test.now(|db, liveness| queue::attempt(db, liveness, &fixed));
        assert!(matches!(ask(&test, 2, true), Upgraded::Blocked { .. }));
        assert_eq!(ask(&test, 1, true), Upgraded::Conflict);
        let later = test.later(SECOND, |db, liveness| upgrade(db, liveness, "r", &[2; 16], true));
        assert_eq!(later, Upgraded::Gone, "its lease has ended");
        let later = test.later(SECOND, |db, liveness| upgrade(db, liveness, "r", &[1; 16], true));
        assert!(matches!(later, Upgraded::Granted { .. }), "the other one is dead");

        let test = TestDb::new();
        let tokens = [1, 2].map(|id| read(&test, id));
        assert!(matches!(ask(&test, 1, true), Upgraded::Blocked { .. }));
        test.now(|db, _| {
            let row = rows::find_token(db, "r", tokens[0])?.expect("it holds");
            Ok(rows::mark_evicted(db, "r", row.seq)?)
        });
        assert!(is_admitted(&test, 3));
        assert_eq!(ask(&test, 1, true), Upgraded::Gone);
    }
}
