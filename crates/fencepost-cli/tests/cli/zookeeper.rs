//! The command on ZooKeeper.

use fencepost_testkit::needs;
use std::process::Command;
use std::time::Duration;

use fencepost_testkit::zookeeper::{Config, Ensemble, ZooKeeper, class_path, ephemerals};
use nix::sys::signal::Signal;

use crate::faults::{
    killed_wrapper, nobody_there, restart_waits, restart_waits_at_its_start, server_that_comes_back,
    server_that_goes, strangers_certificate, wait_for_a_server_that_goes, watch_goes_on,
};
use crate::guard::restarts_in_the_queue;
use crate::kit::{Kid, Place, eventually};
use crate::redis::verbs::{evicting, running, waiting, watching};

/// The jars that ZooKeeper's own command needs.
const CLIENT: [&str; 4] = ["zookeeper", "zookeeper-jute", "slf4j-simple", "commons-cli"];

/// The time limit of each wait.
const SOON: Duration = Duration::from_secs(60);

/// A session's length.
const SESSION: Duration = Duration::from_secs(2);

#[test]
fn every_verb() {
    needs!(ZOOKEEPER);
    let ensemble = Ensemble::start(&Config::new()).unwrap();
    let place = Place::patient(&ensemble.url());
    running(&place);
    waiting(&place);
    evicting(&place);
    watching(&place);
    restarts_in_the_queue(&place);
    place.output(["doctor"]).expect(0);
    // Nothing outlives its session.
    place.output(["acquire", "site"]).expect(64).complains(&["zookeeper"]);
    assert_eq!(place.output(["ls"]).expect(0).out, "");
}

/// Each kind of claim makes the nodes of another class of Curator's, and is refused beside the others.
#[test]
fn the_kind_of_a_lock() {
    needs!(ZOOKEEPER);
    let server = ZooKeeper::start(&Config::new()).unwrap();
    let place = Place::patient(&format!("{}/locks", server.url()));
    for (options, node) in [
        (&[][..], "/locks/stock/_c_"),
        (&["--write"], "-__WRIT__"),
        (&["--shared"], "-__READ__"),
        (&["--permits", "2"], "/locks/stock/leases/_c_"),
    ] {
        let mut running = place.running(options, "stock", "echo up >&9; exec sleep 1000");
        let all = ephemerals(server.address()).unwrap();
        assert!(all.iter().any(|path| path.contains(node)), "{options:?}: {all:?}");
        assert_eq!(
            all.iter().any(|path| path.starts_with("/locks/stock/_c_") && path.contains("-lock-")),
            options.is_empty(),
            "{options:?}: {all:?}"
        );
        let said = place.output(["run", "-n", "--write", "stock", "--", "true"]);
        assert_eq!(
            said.code,
            Some(75),
            "{options:?}: {said:?} {:?} before {all:?}",
            ephemerals(server.address())
        );
        running.kid.send(Signal::SIGTERM);
        running.kid.end();
    }
    // A node that Curator's read-write lock has made, in a folder that is there.
    let mut running = place.running(&["--write"], "stock", "echo up >&9; exec sleep 1000");
    let made = Command::new("java")
        .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", &class_path(&CLIENT)])
        .args(["org.apache.zookeeper.ZooKeeperMain", "-server", &server.address().to_string()])
        .args(["create", "-s", "/locks/stock/_c_0-__WRIT__", "10.0.0.7"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    running.kid.send(Signal::SIGTERM);
    running.kid.end();
    eventually("its node has gone", SOON, || ephemerals(server.address()).ok().filter(Vec::is_empty));
    for verb in
        [&["run", "-n", "stock", "--", "true"][..], &["run", "stock", "--", "true"], &["hold", "stock"]]
    {
        place.output(verb).expect(78).complains(&["a read-write lock", "10.0.0.7", "--write or --shared"]);
    }
    place
        .output(["run", "--permits", "2", "stock", "--", "true"])
        .expect(78)
        .complains(&["without --permits"]);
    place.output(["run", "-n", "--write", "stock", "--", "true"]).expect(75).complains(&["10.0.0.7"]);
}

#[test]
fn over_tls() {
    needs!(ZOOKEEPER, OPENSSL);
    let server = ZooKeeper::start(&Config::new().tls()).unwrap();
    let place = Place::patient(&format!("{}?ca={}", server.url(), server.certificate().display()));
    running(&place);
    place.output(["doctor"]).expect(0);
    strangers_certificate(&server.url(), "ca=/path");
}

#[test]
fn a_killed_wrapper_frees_the_lock_with_its_session_and_its_program_is_gone_before() {
    needs!(ZOOKEEPER);
    let server = ZooKeeper::start(&Config::new()).unwrap();
    let place = Place::at(&format!("{}?session=2s", server.url()));
    killed_wrapper(&place, &[], SESSION + Duration::from_secs(2));
}

#[test]
fn a_server_that_goes_stops_the_program_before_its_session_can_end() {
    needs!(ZOOKEEPER);
    let mut server = ZooKeeper::start(&Config::new()).unwrap();
    let place = Place::at(&format!("{}?session=2s", server.url()));
    server_that_goes(&place, &[], &mut server, SESSION + Duration::from_secs(1));
}

#[test]
fn a_server_that_comes_back_costs_nobody_anything() {
    needs!(ZOOKEEPER);
    let mut server = ZooKeeper::start(&Config::new()).unwrap();
    let place = Place::at(&format!("{}?session=60s&timeout=1s", server.url()));
    // The driver's pauses between its attempts to connect double, so after a restart of 4 s its next attempt may come 2 s later. A release
    // that is given up before then would leave the lock to the end of its session.
    server_that_comes_back(&place, &["--release-wait", "30s"], &mut server);
    watch_goes_on(&place, &mut server);
}

/// A session is certain for less than its length, and for less than a lease that is as long.
#[test]
fn a_lease_longer_than_the_session_is_cut_to_it() {
    needs!(ZOOKEEPER);
    let server = ZooKeeper::start(&Config::new()).unwrap();
    let place = Place::at(&format!("{}?session=6s", server.url()));
    // Over several of its probes.
    for options in [&["--ttl", "7s"][..], &["--ttl", "9s", "--grace", "3s"], &["--ttl", "60s"]] {
        let run = [&["run"], options, &["backup", "--", "sh", "-c", "sleep 4; exit 5"]].concat();
        // A busy machine may keep the probes waiting for a whole session now and then.
        let is_held = (0..3).any(|_| {
            let said = place.output(&run);
            assert!(matches!(said.code, Some(5 | 76)), "{said:?}");
            said.code == Some(5)
        });
        assert!(is_held, "{options:?}: the lock was lost, three times");
    }
}

#[test]
fn a_restart_waits_for_a_server_that_is_away() {
    needs!(ZOOKEEPER);
    let mut server = ZooKeeper::start(&Config::new()).unwrap();
    let place = Place::at(&format!("{}?session=2s", server.url()));
    restart_waits_at_its_start(&place, &[], &mut server);
    restart_waits(&place, &[], &mut server);
}

#[test]
fn a_server_that_is_not_there() {
    nobody_there("zookeeper://127.0.0.1:1?timeout=300ms", "127.0.0.1:1", &[]);
}

#[test]
fn a_password_never_shows() {
    needs!(ZOOKEEPER);
    let server = ZooKeeper::start(&Config::new()).unwrap();
    let place = Place::new();
    let run = |url: String| {
        let mut command = place.fencepost(["run", "-n", "a", "--", "true"]);
        Kid::of(command.env("FENCEPOST_BACKEND", url).env("LOCKS_PASSWORD", "hunter2")).said()
    };
    let address = server.address();
    run(format!("zookeeper://app@{address}/own?password_env=LOCKS_PASSWORD")).expect(0);
    let said = run(format!("zookeeper://app:hunter3@{address}/own"));
    said.expect(77);
    assert!(!said.err.contains("hunter"), "{said:?}");
    for rest in ["/own?nonsense=1", "/own/../x", "/own?session=1"] {
        let said = run(format!("zookeeper://app:hunter2@{address}{rest}"));
        assert!(!said.expect(64).err.contains("hunter"), "{said:?}");
    }
}

#[test]
fn a_server_that_goes_while_one_waits_is_no_busy_lock() {
    needs!(ZOOKEEPER);
    let mut server = ZooKeeper::start(&Config::new()).unwrap();
    // The lock is held until the server goes, also on a busy machine.
    let place = Place::at(&format!("{}?session=5s", server.url()));
    wait_for_a_server_that_goes(&place, &[], &mut server);
}
