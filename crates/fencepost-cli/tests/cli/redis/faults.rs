//! Killed wrappers, and servers that go, hang and come back.

use fencepost_testkit::needs;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

use fencepost_testkit::faults::Faults;
use fencepost_testkit::redis::{Config, Masters, Redis, Sentinel};

use crate::busy::leaves_no_gap;
use crate::faults::{
    guardian_releases, no_wait_at_a_server_that_hangs, restart_reaps_its_guardians, restart_waits,
    restart_waits_at_its_start, server_that_comes_back, server_that_goes, wait_for_a_server_that_goes,
    watch_goes_on,
};
use crate::guard::restarts_in_the_queue;
use crate::kit::{HOLD, Kid, Place, takes_less_than};

/// The shortest lease that the command takes.
const LEASE: Duration = Duration::from_secs(2);

#[test]
fn the_guardian_releases_the_lock_of_a_killed_wrapper() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    guardian_releases(&Place::at(&server.url()));
    let masters = Masters::start(3, &Config::new()).unwrap();
    let place = Place::at(&masters.url());
    place.output(["doctor", "--init", "--yes"]).expect(0);
    guardian_releases(&place);
}

/// The engine is away: the guardian says so, and the lease decides.
#[test]
fn a_guardian_that_cannot_release_says_so() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    let holder = place.running(&["--ttl", "60s"], "backup", HOLD);
    server.kill().unwrap();
    holder.kid.send(Signal::SIGKILL);
    let said = holder.kid.said();
    said.complains(&[
        "was killed: killed the program and its descendants",
        "could not be released, and is freed when its lease ends",
        "cannot connect to Redis at",
    ]);
}

#[test]
fn a_killed_waiter_holds_nobody_up() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    leaves_no_gap(&Place::at(&server.url()));
}

#[test]
fn a_server_that_is_not_there() {
    needs!(REDIS);
    let place = Place::new();
    let mut server = Redis::start(&Config::new()).unwrap();
    let (url, unix) = (server.url(), server.unix_url());
    server.kill().unwrap();
    for arguments in [
        &["run", "-n", "a", "--", "echo", "ran"][..],
        &["run", "-w", "200ms", "a", "--", "echo", "ran"],
        &["acquire", "a"],
        &["ls"],
        &["show", "a"],
    ] {
        for url in [&url, &unix] {
            let said = Kid::of(place.fencepost(arguments).env("FENCEPOST_BACKEND", url)).said();
            said.expect(69).complains(&["cannot connect to Redis at"]);
            assert_eq!(said.out, "");
        }
    }
    let said = place.output(["ls", "-b", "redis+sentinel://127.0.0.1:1,127.0.0.1:2/locks"]);
    said.expect(69).complains(&["127.0.0.1:"]);
    place.output(["ls", "-b", "redis+cluster://127.0.0.1:1,127.0.0.1:2"]).expect(69);
    place
        .output(["ls", "-b", "redlock:redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3"])
        .expect(69);
    place
        .output(["ls", "-b", "redis://no.such.host.invalid"])
        .expect(69)
        .complains(&["no.such.host.invalid"]);
}

#[test]
fn a_server_that_does_not_answer() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    server.stop().unwrap();
    let place = Place::at(&format!("{}?connect_timeout=300ms&timeout=300ms", server.url())).impatient();
    takes_less_than(Duration::from_secs(10), || {
        place
            .output(["run", "-n", "a", "--", "echo", "ran"])
            .expect(69)
            .complains(&["has not taken a connection"]);
        place.output(["ls"]).expect(69);
    });
    server.cont().unwrap();
    // With the usual limits, because a busy server takes longer than these.
    Place::at(&server.url()).output(["run", "-n", "a", "--", "true"]).expect(0);
}

#[test]
fn a_server_that_hangs_ends_a_command_that_does_not_wait() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url()).impatient();
    no_wait_at_a_server_that_hangs(&place, &mut server);
}

#[test]
fn a_server_that_goes_stops_the_program_before_its_lease_can_end() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    server_that_goes(&place, &["--ttl", "2s"], &mut server, LEASE + Duration::from_secs(1));
}

#[test]
fn a_server_that_comes_back_with_its_data_costs_nobody_anything() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new().durable()).unwrap();
    let place = Place::at(&server.url());
    server_that_comes_back(&place, &["--ttl", "20s"], &mut server);
}

#[test]
fn a_watch_outlives_its_server() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new().durable()).unwrap();
    let place = Place::at(&format!("{}?connect_timeout=300ms&timeout=300ms", server.url()));
    watch_goes_on(&place, &mut server);
}

#[test]
fn a_failover_is_followed() {
    needs!(REDIS);
    let mut deployment = Sentinel::start(3, &Config::new()).unwrap();
    let place = Place::at(&deployment.url());
    let go = place.path("go");
    let script = format!("echo up >&9; until [ -e '{}' ]; do sleep 0.05; done; exit 5", go.display());
    let holder = place.running(&["--ttl", "20s"], "backup", &script);
    // So that the grant is at the replica.
    let set: i64 = deployment.master().look().ask(&["WAIT", "1", "10000"]);
    assert_eq!(set, 1);
    deployment.fail_over().unwrap();
    place.output(["run", "-n", "backup", "--", "true"]).expect(75);
    place.file("go", "");
    holder.kid.said().expect(5);
    place.output(["run", "-n", "backup", "--", "true"]).expect(0);
}

#[test]
fn a_restart_stands_in_line_behind_those_who_wait() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    restarts_in_the_queue(&Place::at(&server.url()));
}

#[test]
fn a_restart_waits_for_a_server_that_is_away() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    restart_waits(&place, &["--ttl", "2s"], &mut server);
}

#[test]
fn a_restart_waits_at_its_start_for_a_server_that_is_away() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    restart_waits_at_its_start(&place, &["--ttl", "2s"], &mut server);
    // No longer than the user would.
    server.kill().unwrap();
    for wait in [&["-n"][..], &["-w", "1s"]] {
        let options = [&["run"], wait, &["--on-lost", "restart", "a", "--", "echo", "ran"]].concat();
        place.output(options).expect(69).complains(&["cannot connect to Redis at"]);
    }
}

#[test]
fn a_restart_that_waits_for_a_server_leaves_no_dead_process() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&format!("{}?connect_timeout=300ms&timeout=300ms", server.url()));
    restart_reaps_its_guardians(&place, &mut server);
}

#[test]
fn a_restart_waits_for_a_server_as_long_as_it_may() {
    needs!(REDIS);
    for (wait, most) in [(&["-n"][..], Duration::from_secs(20)), (&["-w", "1s"], Duration::from_secs(20))] {
        let mut server = Redis::start(&Config::new()).unwrap();
        let place = Place::at(&server.url());
        let options = [&["--ttl", "2s", "--on-lost", "restart"], wait].concat();
        let running = place.running(&options, "backup", "echo up >&9; exec sleep 1000");
        let start = Instant::now();
        server.kill().unwrap();
        running
            .kid
            .said()
            .expect(69)
            .complains(&["waiting for the lock again", "cannot connect to Redis at"]);
        assert!(start.elapsed() < most, "{:?}", start.elapsed());
    }
}

#[test]
fn a_majority_that_refuses_the_user_is_no_reason_to_wait() {
    needs!(REDIS);
    let masters = Masters::start(3, &Config::new()).unwrap();
    for node in masters.nodes() {
        let rule = ["ACL", "SETUSER", "default", "resetkeys", "~other:*"];
        node.look().ask::<()>(&rule);
    }
    let place = Place::at(&format!("{}?node_timeout=2s", masters.url()));
    for wait in [&["-n"][..], &["-w", "60s"], &[]] {
        // An engine that merely fails is asked for ten seconds.
        takes_less_than(Duration::from_secs(8), || {
            let said = place.output([&["run"], wait, &["a", "--", "echo", "ran"]].concat());
            said.expect(77).complains(&["fewer than 2 of 3 nodes", "does not let this user do that"]);
        });
    }
}

#[test]
fn nodes_that_stay_out_are_waited_for_as_long_as_the_user_would() {
    needs!(REDIS);
    let masters = Masters::start(3, &Config::new()).unwrap();
    // Longer than a client retries an engine that fails.
    let place = Place::at(&format!("{}?max_ttl=12&node_timeout=2s", masters.url()));
    let run =
        |wait: &[&str]| place.output([&["run", "--ttl", "2s"], wait, &["a", "--", "echo", "ran"]].concat());
    run(&["-n"]).expect(69).complains(&["stays out for", "wait so long", "doctor --init"]);
    assert_eq!(run(&["-w", "60s"]).expect(0).out, "ran\n");
}

#[test]
fn a_server_that_goes_while_one_waits_is_no_busy_lock() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    wait_for_a_server_that_goes(&place, &["--ttl", "2s"], &mut server);
}

#[test]
fn a_program_is_not_started_under_a_lease_that_is_over() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    crate::paused::nothing_runs_after_a_pause(&Place::at(&server.url()));
}
