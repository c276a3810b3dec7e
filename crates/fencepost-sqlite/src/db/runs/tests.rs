use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{ClaimId, Clock, HolderInfo, Mode, Name, Runtime, Spawner, Task, Want};

use super::*;
use crate::db::queue::{self, Outcome};
use crate::testing::{SECOND, TestDb};

struct Nobody;

impl Spawner for Nobody {
    fn spawn(&self, _: Task) {}
}

fn claim(name: &str, id: u8, keep: Duration) -> Claim {
    let want = Want { name: Name::new(name).unwrap(), mode: Mode::Exclusive };
    let runtime = Runtime::for_client(1, Clock::manual(), Arc::new(Nobody));
    let id = ClaimId::from_u128(u128::from_be_bytes([id; 16]));
    let mut claim =
        Claim::new(id, want, Duration::from_secs(30), HolderInfo::labelled("me@host/job"), runtime);
    claim.history = Some(keep);
    claim
}

/// Grants `name` to claim `id` after so many seconds, and ends that with `exit_code` at once.
fn run(test: &TestDb, name: &str, id: u8, after: u64, keep: Duration, exit_code: i32) {
    let claim = claim(name, id, keep);
    let request = queue::Request { resource: name, ..test.request(id, Mode::Exclusive) };
    test.later(after * SECOND, |db, liveness| {
        let (outcome, _) = queue::attempt(db, liveness, &request)?;
        let Outcome::Granted { seq, token } = outcome else { panic!("{outcome:?}") };
        begin(db, &claim, token, seq, liveness.now.wall)?;
        claim.report(exit_code, fencepost_core::RunEnd::Exited);
        let ending = ending(db, &claim, None)?.expect("it holds");
        let left = queue::withdraw(db, liveness, name, &[id; 16], None)?;
        Ok(end(db, &claim, &ending, left.removed, liveness.now.wall, End::Released)?)
    });
}

fn kept(test: &TestDb, name: &str) -> Option<Runs> {
    test.now(|db, _| Ok(of(db, name)?))
}

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn the_table_is_made_by_the_first_who_needs_it() {
    let test = TestDb::new();
    let tables = || {
        let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table'";
        test.now(|db, _| Ok(db.query_row(sql, [], |row| row.get::<_, i64>(0))?))
    };
    let request = test.request(1, Mode::Exclusive);
    test.now(|db, liveness| queue::attempt(db, liveness, &request));
    test.now(|db, liveness| queue::withdraw(db, liveness, "r", &[1; 16], None));
    assert_eq!((tables(), kept(&test, "r")), (2, None));
    run(&test, "r", 2, 0, DAY, 0);
    assert_eq!(tables(), 3);
    let runs = kept(&test, "r").unwrap();
    assert!(
        runs.last.as_ref().is_some_and(fencepost_core::Run::is_good) && runs.last == runs.good,
        "{runs:?}"
    );
}

#[test]
fn what_was_kept_long_enough_is_removed_by_later_runs() {
    let test = TestDb::new();
    run(&test, "short", 1, 0, DAY, 0);
    run(&test, "long", 2, 0, 3 * DAY, 0);
    // A claim that asks for less does not shorten what another one has asked for.
    run(&test, "long", 3, 1, DAY, 1);
    run(&test, "other", 4, 86_400, DAY, 0);
    assert!(kept(&test, "short").is_some(), "a day is not over");
    run(&test, "other", 5, 86_401, DAY, 0);
    assert_eq!(kept(&test, "short"), None);
    let long = kept(&test, "long").unwrap();
    assert_eq!(long.last.and_then(|run| run.exit_code), Some(1));
    assert_eq!(long.good.and_then(|run| run.exit_code), Some(0));
}
