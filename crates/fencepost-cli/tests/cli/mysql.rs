//! The command on MariaDB.

use std::time::Duration;

use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;

use crate::faults::{guardian_releases, killed_wrapper, nobody_there, program_inherits_the_connection};
use crate::guard::restarts_in_the_queue;
use crate::kit::{HOLD, Place};
use crate::redis::verbs::{evicting, waiting, watching};

#[test]
fn every_verb() {
    needs!(MARIADB);
    let server = MariaDb::start().unwrap();
    let place = Place::patient(&server.url());
    waiting(&place);
    evicting(&place);
    watching(&place);
    restarts_in_the_queue(&place);
    place.output(["doctor"]).expect(0);
}

#[test]
fn the_guardian_releases_the_lock_of_a_killed_wrapper_on_tables() {
    needs!(MARIADB);
    let server = MariaDb::start().unwrap();
    let place = Place::patient(&format!("{}?mode=table", server.url()));
    let grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON `fencepost_lock` TO app;";
    let said = place.output(["schema", "--apply"]);
    said.expect(0).complains(&[grant]);
    // These statements give another user its rights.
    server.run("CREATE USER app").unwrap();
    let grants = said.err.lines().filter(|line| line.trim().starts_with("GRANT ")).collect::<String>();
    server.run(&grants).unwrap();
    let app = Place::at(&format!("mysql://app@{}/fencepost?mode=table", server.address()));
    let said = app.output(["run", "--once-per", "1h", "job", "--", "echo", "ran"]);
    assert_eq!(said.expect(0).out, "ran\n");
    guardian_releases(&place);
}

/// The connection ends with the wrapper, and the program inherits it.
#[test]
fn a_killed_wrapper_frees_the_lock_with_its_lease_and_its_program_is_gone_before() {
    needs!(MARIADB);
    let server = MariaDb::start().unwrap();
    let place = Place::at(&server.url());
    program_inherits_the_connection(&place);
    killed_wrapper(&place, &["--ttl", "2s"], Duration::from_secs(3));
}

#[test]
fn a_server_that_goes_stops_the_program_at_once() {
    needs!(MARIADB);
    let mut server = MariaDb::start().unwrap();
    let place = Place::at(&server.url());
    let holder = place.running(&["--ttl", "20s"], "backup", HOLD);
    server.kill().unwrap();
    holder.kid.said().expect(76).complains(&["the session it lived on ended"]);
}

#[test]
fn a_server_that_is_not_there() {
    nobody_there("mysql://me@127.0.0.1:1/app?timeout=300ms", "127.0.0.1:1", &[]);
}

#[test]
fn modes_that_the_server_lacks_are_refused() {
    needs!(MARIADB);
    let server = MariaDb::start().unwrap();
    let place = Place::at(&server.url());
    place.output(["run", "--shared", "a", "--", "true"]).expect(64).complains(&["mysql"]);
    place.output(["acquire", "a"]).expect(64).complains(&["mysql"]);
}
