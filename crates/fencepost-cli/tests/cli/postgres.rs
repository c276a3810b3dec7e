//! The command on PostgreSQL.

use std::time::Duration;

use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::sql::Postgres;
use nix::sys::signal::Signal;

use crate::faults::{guardian_releases, killed_wrapper, nobody_there, program_inherits_the_connection};
use crate::guard::restarts_in_the_queue;
use crate::kit::{HOLD, Kid, LONG, Place, Said, eventually};
use crate::redis::verbs::{evicting, exclusive_and_shared, waiting, watching};

#[test]
fn every_verb() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let place = Place::patient(&server.url());
    exclusive_and_shared(&place);
    waiting(&place);
    evicting(&place);
    watching(&place);
    restarts_in_the_queue(&place);
    place.output(["doctor"]).expect(0);
}

#[test]
fn the_guardian_releases_the_lock_of_a_killed_wrapper_on_tables() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let place = Place::patient(&format!("{}?mode=table", server.url()));
    place.output(["schema", "--apply"]).expect(0);
    guardian_releases(&place);
}

/// The connection ends with the wrapper, and the program inherits it.
#[test]
fn a_killed_wrapper_frees_the_lock_with_its_lease_and_its_program_is_gone_before() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let place = Place::at(&server.url());
    program_inherits_the_connection(&place);
    killed_wrapper(&place, &["--ttl", "2s"], Duration::from_secs(3));
}

#[test]
fn a_server_that_goes_stops_the_program_at_once() {
    needs!(POSTGRES);
    let mut server = Postgres::start().unwrap();
    let place = Place::at(&server.url());
    let holder = place.running(&["--ttl", "20s"], "backup", HOLD);
    server.kill().unwrap();
    holder.kid.said().expect(76).complains(&["the session it lived on ended"]);
}

#[test]
fn an_eviction_of_a_stopped_client_says_how_to_end_its_session() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let place = Place::at(&server.url()).impatient();
    let holder = place.running(&["--ttl", "60s"], "backup", HOLD);
    let token = place.show("backup")["holders"][0]["token"].to_string();
    holder.kid.send(Signal::SIGSTOP);
    // The lock is busy, although its holder does not tell who it is.
    for (wait, text) in [("-n", "backup is busy"), ("-w1s", "backup is still busy after 1s")] {
        busy(&place, &["run", wait, "backup", "--", "true"]).complains(&[text]);
    }
    for token in [&token, "0"] {
        let said = place.output(["evict", "backup", "--token", token, "--yes"]);
        said.expect(69).complains(&["does not reply", "pg_terminate_backend"]);
    }
    // The server has kept the request.
    holder.kid.send(Signal::SIGCONT);
    holder.kid.said().expect(76).complains(&["evicted"]);
}

/// Runs a command that finds the lock busy. A server that is busy with other things may not answer within the second that an attempt has.
fn busy(place: &Place, command: &[&str]) -> Said {
    eventually("a busy lock", LONG, || Some(place.output(command)).filter(|said| said.code == Some(75)))
}

/// The look at the holders is for the message. Each stopped holder makes it wait.
#[test]
fn a_lock_is_busy_although_nobody_tells_its_holders_in_time() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let place = Place::at(&server.url()).impatient();
    let holders = ["a", "b", "c"].map(|name| place.running(&["--ttl", "60s"], name, HOLD));
    holders.iter().for_each(|holder| holder.kid.send(Signal::SIGSTOP));
    for (wait, text) in
        [("-n", "is busy"), ("-w1s", "is still busy after 1s"), ("-w3s", "is still busy after 3s")]
    {
        let said = busy(&place, &["run", wait, "a", "b", "c", "--", "true"]);
        said.complains(&[&format!("one of a, b, c {text}")]);
    }
    holders.iter().for_each(|holder| holder.kid.send(Signal::SIGCONT));
}

#[test]
fn a_server_that_is_not_there() {
    nobody_there("postgres://me@127.0.0.1:1?timeout=300ms", "127.0.0.1:1", &[]);
}

#[test]
fn leases_without_a_process_are_refused() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let place = Place::at(&server.url());
    place.output(["acquire", "a"]).expect(64).complains(&["postgres"]);
    // One that another engine gave.
    let other = Place::new();
    let lease = other.output(["acquire", "a"]).expect(0).out.trim().to_owned();
    for verb in ["release", "extend"] {
        let said = Kid::of(place.fencepost([verb]).env("FENCEPOST_LEASE", &lease)).said();
        said.expect(64).complains(&["no detached leases", "belongs to another engine"]);
    }
    place.output(["permits", "gpu", "--set", "1"]).expect(64).complains(&["with mode=table in the URL"]);
    let run = ["run", "--permits", "2", "gpu", "--", "true"];
    place.output(run).expect(64).complains(&["no permits", "use mode=table in the URL"]);
}

#[test]
fn a_schema_is_printed_and_made() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let place = Place::at(&server.url());
    // First, because afterwards the owner has a schema of its own name, and these tables would be there.
    let table = place.output(["schema", "--apply", "-b", &format!("{}?mode=table", server.url())]);
    table.expect(0).complains(&[
        "schema ready: 4 tables, 1 view, 1 index (nothing else was changed)\n",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON \"fencepost_lock\", \"fencepost_lock_queue\", ",
    ]);
    // These statements give another user its rights.
    server.run("CREATE ROLE app LOGIN").unwrap();
    let grants = table.err.lines().filter(|line| line.trim().starts_with("GRANT ")).collect::<String>();
    server.run(&grants).unwrap();
    let app = Place::at(&format!("postgres://app@{}/postgres?mode=table", server.address()));
    let said = app.output(["run", "--once-per", "1h", "job", "--", "echo", "ran"]);
    assert_eq!(said.expect(0).out, "ran\n");
    let printed = place.output(["schema"]).expect(0).out.clone();
    assert!(printed.contains("CREATE SEQUENCE fencepost.token"), "{printed}");
    assert_eq!(server.run("SELECT to_regclass('fencepost.token') IS NULL").unwrap().trim(), "t");
    for _ in 0..2 {
        let said = place.output(["schema", "--apply"]);
        said.expect(0).complains(&[
            "schema ready: 1 schema, 2 tables, 1 sequence, 2 indexes (nothing else was changed)\n",
        ]);
    }
    assert_eq!(server.run("SELECT to_regclass('fencepost.token') IS NULL").unwrap().trim(), "f");
    place.output(["schema", "-b", "memory:"]).expect(64).complains(&["memory", "no schema"]);
    server.run("ALTER ROLE CURRENT_USER SET search_path TO ''").unwrap();
    let place = Place::at(&format!("{}?mode=table", server.url()));
    place.output(["schema", "--apply"]).expect(78).complains(&["set search_path"]);
}
