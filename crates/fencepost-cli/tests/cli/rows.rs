//! The command on row locks of PostgreSQL and MariaDB.

use std::time::Duration;

use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::sql::{MariaDb, Postgres};

use crate::faults::{killed_wrapper, program_inherits_the_connection};
use crate::guard::restarts_in_the_queue;
use crate::kit::{HOLD, Place};
use crate::redis::verbs::{evicting, exclusive_and_shared, waiting, watching};

/// A place with the row locks of a server, and their tables.
fn rows(url: &str) -> Place {
    let place = Place::at(&format!("{url}?mode=row"));
    for verb in [&["run", "a", "--", "true"][..], &["ls"], &["show", "a"], &["doctor"]] {
        place.output(verb).expect(78).complains(&["mode=row is missing", "fencepost schema --apply"]);
    }
    place.output(["schema", "--apply"]).expect(0);
    place
}

fn every_verb(url: &str) {
    let place = rows(url);
    exclusive_and_shared(&place);
    waiting(&place);
    evicting(&place);
    watching(&place);
    restarts_in_the_queue(&place);
    let report = place.output(["doctor"]).expect(0).out.clone();
    assert!(report.contains("transactions"), "{report}");
    // Other modes of the same server do these.
    place
        .output(["run", "--permits", "2", "slots", "--", "true"])
        .expect(64)
        .complains(&["mode=row has no permits", "use another mode"]);
    place.output(["acquire", "a"]).expect(64).complains(&["mode=table"]);
}

#[test]
fn every_verb_on_rows_of_postgres() {
    needs!(POSTGRES);
    every_verb(&Postgres::start().unwrap().url());
}

#[test]
fn every_verb_on_rows_of_mariadb() {
    needs!(MARIADB);
    every_verb(&MariaDb::start().unwrap().url());
}

/// The connection of the transaction ends with the wrapper, and the program inherits it.
#[test]
fn a_wrapper_on_rows_of_postgres_is_killed() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let place = rows(&server.url());
    program_inherits_the_connection(&place);
    killed_wrapper(&place, &["--ttl", "2s"], Duration::from_secs(3));
}

#[test]
fn a_wrapper_on_rows_of_mariadb_is_killed() {
    needs!(MARIADB);
    let server = MariaDb::start().unwrap();
    let place = rows(&server.url());
    program_inherits_the_connection(&place);
    killed_wrapper(&place, &["--ttl", "2s"], Duration::from_secs(3));
}

#[test]
fn a_server_of_rows_that_goes_stops_the_program_at_once() {
    needs!(POSTGRES);
    let mut server = Postgres::start().unwrap();
    let place = rows(&server.url());
    let holder = place.running(&["--ttl", "20s"], "backup", HOLD);
    server.kill().unwrap();
    holder.kid.said().expect(76).complains(&["the session it lived on ended"]);
}
