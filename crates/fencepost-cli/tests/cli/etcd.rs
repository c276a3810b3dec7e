//! The command on etcd.

use fencepost_testkit::needs;
use std::time::Duration;

use fencepost_testkit::etcd::{Cluster, Config, Etcd};
use fencepost_testkit::faults::Faults;

use crate::faults::{
    guardian_releases, no_wait_at_a_server_that_hangs, nobody_there, restart_waits,
    restart_waits_at_its_start, server_that_comes_back, server_that_goes, strangers_certificate,
    wait_for_a_server_that_goes, watch_goes_on,
};
use crate::guard::restarts_in_the_queue;
use crate::kit::{HOLD, Place};
use crate::redis::verbs::{evicting, running, waiting, watching};

/// The shortest lease that the command takes.
const LEASE: Duration = Duration::from_secs(2);

#[test]
fn every_verb() {
    needs!(ETCD, ETCDCTL);
    let server = Etcd::start(&Config::new()).unwrap();
    let place = Place::patient(&server.url());
    running(&place);
    waiting(&place);
    evicting(&place);
    watching(&place);
    restarts_in_the_queue(&place);
    place.output(["doctor"]).expect(0);
}

#[test]
fn a_lease_goes_from_process_to_process() {
    needs!(ETCD, ETCDCTL);
    let cluster = Cluster::start(&Config::new()).unwrap();
    let place = Place::patient(&cluster.url());
    let lease = place.output(["acquire", "--ttl", "20s", "--reason", "deploy", "site"]).expect(0).out.clone();
    let lease = lease.trim();
    place.output(["run", "-n", "site", "--", "true"]).expect(75).complains(&[
        "deploy",
        "site is busy: lease taken by ",
        ", no process",
    ]);
    place.output(["extend", "--ttl", "50s", lease]).expect(0);
    place.output(["release", lease]).expect(0);
    place.output(["release", lease]).expect(76);
    place.output(["run", "-n", "site", "--", "true"]).expect(0);
    // etcd's leases are whole seconds long.
    place.output(["acquire", "--ttl", "500ms", "site"]).expect(64).complains(&["2s"]);
    let short = place.output(["acquire", "--ttl", "2s", "site"]).expect(0).out.clone();
    place.output(["run", "-w", "20s", "site", "--", "true"]).expect(0);
    place.output(["extend", short.trim()]).expect(76).complains(&["site"]);
    // The record of runs stays.
    assert_eq!(cluster.look().keys("").iter().filter(|key| !key.starts_with("%fencepost/run/")).count(), 0);
}

#[test]
fn over_tls() {
    needs!(ETCD, ETCDCTL, OPENSSL);
    let server = Etcd::start(&Config::new().tls()).unwrap();
    let place = Place::patient(&format!("{}?ca={}", server.url(), server.certificate().display()));
    running(&place);
    place.output(["doctor"]).expect(0);
    strangers_certificate(&server.url(), "check ca");
}

#[test]
fn the_guardian_releases_the_lock_of_a_killed_wrapper() {
    needs!(ETCD, ETCDCTL);
    let server = Etcd::start(&Config::new()).unwrap();
    guardian_releases(&Place::patient(&server.url()));
}

#[test]
fn a_server_that_hangs_ends_a_command_that_does_not_wait() {
    needs!(ETCD, ETCDCTL);
    let mut server = Etcd::start(&Config::new()).unwrap();
    let place = Place::at(&server.url()).impatient();
    no_wait_at_a_server_that_hangs(&place, &mut server);
}

#[test]
fn a_server_that_goes_stops_the_program_before_its_lease_can_end() {
    needs!(ETCD, ETCDCTL);
    let mut server = Etcd::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    server_that_goes(&place, &["--ttl", "2s"], &mut server, LEASE + Duration::from_secs(1));
}

#[test]
fn a_server_that_comes_back_costs_nobody_anything() {
    needs!(ETCD, ETCDCTL);
    let mut server = Etcd::start(&Config::new()).unwrap();
    let place = Place::at(&format!("{}?timeout=300ms", server.url()));
    server_that_comes_back(&place, &["--ttl", "20s"], &mut server);
    watch_goes_on(&place, &mut server);
}

#[test]
fn a_restart_waits_for_a_server_that_is_away() {
    needs!(ETCD, ETCDCTL);
    let mut server = Etcd::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    restart_waits_at_its_start(&place, &["--ttl", "2s"], &mut server);
    restart_waits(&place, &["--ttl", "2s"], &mut server);
}

#[test]
fn a_server_that_is_not_there() {
    nobody_there("etcd://127.0.0.1:1?timeout=300ms", "127.0.0.1:1", &[&["acquire", "a"]]);
}

#[test]
fn a_server_that_does_not_answer() {
    needs!(ETCD, ETCDCTL);
    let mut server = Etcd::start(&Config::new()).unwrap();
    let place = Place::at(&format!("{}?connect_timeout=300ms&timeout=600ms", server.url())).impatient();
    server.stop().unwrap();
    for arguments in [&["ls"][..], &["show", "a"], &["queue", "a"], &["run", "-n", "a", "--", "true"]] {
        let said = place.output(arguments);
        assert!(!said.expect(69).err.contains("taken effect"), "{said:?}");
    }
    server.cont().unwrap();
    // With the usual limits, because a busy server takes longer than these.
    Place::at(&server.url()).output(["run", "-n", "a", "--", "true"]).expect(0);
}

#[test]
fn a_user_who_loses_his_right_is_told_so_with_the_loss() {
    needs!(ETCD, ETCDCTL);
    let server = Etcd::start(&Config::new()).unwrap();
    let look = server.look();
    for command in [
        &["user", "add", "root:topsecret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "app:hunter2"],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "locks/"],
        &["user", "grant-role", "app", "locks"],
        &["auth", "enable"],
    ] {
        look.run(command);
    }
    let place = Place::at(&format!("etcd://app:hunter2@{}?prefix=locks/", server.address()));
    // On a busy machine no renewal may be refused before the lease has ended.
    let is_told = (0..3).any(|_| {
        let holder = place.running(&["--ttl", "8s"], "backup", HOLD);
        server.look().of("root:topsecret").run(&["user", "revoke-role", "app", "locks"]);
        let said = holder.kid.said();
        server.look().of("root:topsecret").run(&["user", "grant-role", "app", "locks"]);
        assert!(!said.err.contains("hunter2"), "{said:?}");
        let parts = ["could not be renewed in time (", "grant the user read and write access"];
        parts.iter().all(|part| said.expect(76).err.contains(part))
    });
    assert!(is_told, "the cause was not told with the loss, three times");
}

#[test]
fn what_is_shown_of_others_is_short_and_what_is_not_known_is_not_claimed() {
    needs!(ETCD, ETCDCTL);
    let server = Etcd::start(&Config::new()).unwrap();
    let place = Place::patient(&format!("{}?prefix=locks/", server.url()));
    let _holder = place.running(&["--ttl", "20s"], "backup", HOLD);
    assert!(place.output(["ls"]).expect(0).out.contains("up to "));
    assert!(place.output(["show", "backup"]).expect(0).out.contains(") for up to "));
    assert_eq!(place.show("backup")["holders"][0]["since"], "arrival");
    server.look().run(&["put", "locks/stuck/by-hand", &"x".repeat(100_000)]);
    let shown = place.output(["show", "stuck"]).expect(0).out.clone();
    assert!(shown.len() < 1_000 && shown.contains("(100000 bytes in all)"), "{shown}");
    let label = place.show("stuck")["holders"][0]["holder"].to_string();
    assert_eq!(label.matches('x').count(), 200, "{label}");
    assert!(shown.contains("never expires") && !shown.contains(" for "), "{shown}");
    let held = &place.show("stuck")["holders"][0];
    assert!(held["since"].is_null() && held["age_ms"].is_null() && held["endless"] == true, "{held}");
    let token = held["token"].to_string();
    place.output(["evict", "stuck", "--token", &token, "--yes"]).expect(64).complains(&["--now"]);
    place.output(["evict", "stuck", "--token", &token, "--yes", "--now"]).expect(0);
    place.output(["run", "-n", "stuck", "--", "true"]).expect(0);
}

#[test]
fn what_the_program_calls_uses_the_same_engine() {
    needs!(ETCD, ETCDCTL);
    let server = Etcd::start(&Config::new()).unwrap();
    let place = Place::patient(&server.url());
    let nested = |name: &str| format!("\"$FENCEPOST\" run -n {name} -- true");
    place.output(["run", "outer", "--", "sh", "-c", &nested("outer")]).expect(75).complains(&["outer"]);
    place.output(["run", "outer", "--", "sh", "-c", &nested("inner")]).expect(0);
}

#[test]
fn a_server_that_goes_while_one_waits_is_no_busy_lock() {
    needs!(ETCD, ETCDCTL);
    let mut server = Etcd::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    wait_for_a_server_that_goes(&place, &["--ttl", "2s"], &mut server);
}
