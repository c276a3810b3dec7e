//! Every verb on every deployment.

use fencepost_testkit::needs;
use std::io::Write;
use std::process::Stdio;

use fencepost_testkit::redis::{Cluster, Config, Masters, Redis, Sentinel};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::kit::{HOLD, Kid, LONG, Place, event, eventually};

#[test]
fn one_server() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let place = Place::patient(&server.url());
    all(&place);
    watching(&place);
    // The same locks by another way, and others under another prefix or in another database.
    let _holder = place.running(&[], "site", HOLD);
    let run = |url: String| Place::at(&url).output(["run", "-n", "site", "--", "true"]);
    run(server.unix_url()).expect(75);
    run(format!("{}/0?prefix=fencepost:", server.url())).expect(75);
    run(format!("{}?prefix=other:", server.url())).expect(0);
    run(format!("{}/1", server.url())).expect(0);
    let said = Place::at(&format!("{}?prefix=other:", server.url())).output(["ls"]);
    assert_eq!(said.expect(0).out, "");
}

#[test]
fn sentinel() {
    needs!(REDIS);
    let deployment = Sentinel::start(3, &Config::new()).unwrap();
    let place = Place::patient(&deployment.url());
    all(&place);
}

#[test]
fn cluster() {
    needs!(REDIS);
    let cluster = Cluster::start(&Config::new()).unwrap();
    let place = Place::patient(&cluster.url());
    all(&place);
    // Names with braces are names like others: what is in them is no slot's business but their own.
    for name in ["{a}b", "{a}c", "{", "a{}b", "}a{"] {
        place.output(["run", "-n", name, "--", "true"]).expect(0);
    }
    // Several names are locked all or none, whatever their slots are.
    let holder = place.running(&[], "three", HOLD);
    place.output(["run", "-n", "one", "two", "three", "--", "true"]).expect(75);
    holder.kid.send(Signal::SIGTERM);
    holder.kid.said().expect(143);
    let said = place.output(["run", "-n", "one", "two", "three", "--", "sh", "-c", "echo $FENCEPOST_NAME"]);
    assert_eq!(said.expect(0).out, "one three two\n");
    assert_eq!(place.output(["ls"]).expect(0).out, "");
}

#[test]
fn redlock() {
    needs!(REDIS);
    let masters = Masters::start(3, &Config::new()).unwrap();
    // A node of a busy machine is waited for.
    let place = Place::at(&format!("{}?node_timeout=2s", masters.url()));
    place.output(["doctor", "--init", "--yes"]).expect(0);
    running(&place);
    evicting(&place);
    leases(&place);
    // Nobody waits in the queue at a quorum: who waits asks again.
    let holder = place.running(&[], "backup", HOLD);
    let waiter = Kid::of(&mut place.fencepost(["run", "-w", "30s", "backup", "--", "echo", "next"]));
    holder.kid.send(Signal::SIGTERM);
    assert_eq!(waiter.said().expect(0).out, "next\n");
}

/// The cases of every deployment with a queue.
fn all(place: &Place) {
    running(place);
    waiting(place);
    evicting(place);
    leases(place);
}

/// The verbs that hold a lock, in each mode.
pub(crate) fn running(place: &Place) {
    exclusive_and_shared(place);
    permits(place);
}

/// A program runs while the lock is held, and others are told who holds it.
pub(crate) fn exclusive_and_shared(place: &Place) {
    assert_eq!(place.output(["ls"]).expect(0).out, "");
    place.output(["run", "backup", "--", "sh", "-c", "exit 7"]).expect(7);
    let holder =
        place.running(&["--reason", "nightly"], "backup", "echo $FENCEPOST_TOKEN >&9; exec sleep 1000");
    let shown = place.show("backup");
    let held = &shown["holders"][0];
    assert_eq!(held["pid"].as_i64(), Some(holder.kid.pid().into()));
    assert_eq!((held["reason"].as_str(), held["mode"].as_str()), (Some("nightly"), Some("exclusive")));
    // Where the holder itself tells who it is, it has half a second for that, which a busy machine exceeds now and then.
    let said = eventually("a message with the holder", LONG, || {
        let said = place.output(["run", "-n", "backup", "--", "echo", "ran"]);
        said.expect(75).err.contains("held by ").then_some(said)
    });
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    said.expect(75).complains(&["backup is busy: held by ", &host, &holder.kid.pid().to_string(), "nightly"]);
    assert_eq!(said.out, "");
    place.output(["run", "-n", "-s", "backup", "--", "true"]).expect(75);
    let listed = place.output(["ls", "-l", "back"]).expect(0).out.clone();
    assert!(listed.contains("backup") && listed.contains(&held["token"].to_string()), "{listed}");
    assert_eq!(place.output(["ls", "other"]).expect(0).out, "");
    holder.kid.send(Signal::SIGTERM);
    holder.kid.said().expect(143);
    // Readers hold beside each other.
    let first = place.running(&["-s"], "prices", HOLD);
    place.output(["run", "-n", "-s", "prices", "--", "true"]).expect(0);
    place.output(["run", "-n", "prices", "--", "true"]).expect(75);
    first.kid.send(Signal::SIGTERM);
    first.kid.said().expect(143);
    assert_eq!(place.output(["ls"]).expect(0).out, "", "nothing is left");
}

/// As many hold as there are permits.
fn permits(place: &Place) {
    let first = place.running(&["--permits", "2"], "slots", HOLD);
    let second = place.running(&["--permits", "2"], "slots", HOLD);
    place.output(["run", "-n", "--permits", "2", "slots", "--", "true"]).expect(75);
    for holder in [first, second] {
        holder.kid.send(Signal::SIGTERM);
        holder.kid.said().expect(143);
    }
    assert_eq!(place.output(["ls"]).expect(0).out, "", "nothing is left");
}

/// The line is shown in order, and passed on in order.
pub(crate) fn waiting(place: &Place) {
    let holder = place.running(&[], "backup", HOLD);
    let next = |text: &'static str, count: usize| {
        let kid = Kid::of(&mut place.fencepost(["run", "--reason", text, "backup", "--", "echo", text]));
        (kid, place.waiters("backup", count))
    };
    let (first, _) = next("first", 1);
    let (second, shown) = next("second", 2);
    let reasons: Vec<_> =
        shown["waiters"].as_array().unwrap().iter().map(|one| one["reason"].clone()).collect();
    assert_eq!(reasons, ["first", "second"]);
    let queue = place.output(["queue", "backup"]).expect(0).out.clone();
    assert!(queue.find("first").unwrap() < queue.find("second").unwrap(), "{queue}");
    // One who gives up leaves the line at once.
    let third = eventually("a message with the holder", LONG, || {
        let said = place.output(["run", "-w", "300ms", "backup", "--", "true"]);
        said.expect(75).err.contains("held by ").then_some(said)
    });
    third.complains(&["backup is still busy after 300ms: held by "]);
    place.waiters("backup", 2);
    second.send(Signal::SIGTERM);
    second.said().expect(143);
    place.waiters("backup", 1);
    holder.kid.send(Signal::SIGTERM);
    assert_eq!(first.said().expect(0).out, "first\n");
    assert_eq!(place.output(["ls"]).expect(0).out, "");
}

/// A holder is named by its token, told, and its program is stopped.
pub(crate) fn evicting(place: &Place) {
    let holder = place.running(&[], "backup", HOLD);
    let token = place.show("backup")["holders"][0]["token"].as_u64().unwrap();
    place.output(["evict", "backup", "--token", &(token + 1).to_string(), "--yes"]).expect(1);
    place
        .output(["evict", "backup", "--token", &token.to_string(), "--yes"])
        .expect(0)
        .complains(&["audit:"]);
    holder.kid.said().expect(76).complains(&["evicted"]);
    let said = place.output(["run", "-w", "20s", "backup", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]);
    assert!(said.expect(0).out.trim().parse::<u64>().unwrap() > token, "{said:?}");
    let holder = place.running(&[], "backup", HOLD);
    let token = place.show("backup")["holders"][0]["token"].to_string();
    place.output(["evict", "backup", "--token", &token, "--yes", "--now"]).expect(0);
    place.output(["run", "-n", "backup", "--", "true"]).expect(0);
    holder.kid.said().expect(76);
}

/// A lease goes from process to process.
fn leases(place: &Place) {
    let lease = place.output(["acquire", "--ttl", "20s", "--reason", "deploy", "site"]).expect(0).out.clone();
    let lease = lease.trim();
    place.output(["run", "-n", "site", "--", "true"]).expect(75).complains(&[
        "deploy",
        "site is busy: lease taken by ",
        ", no process",
    ]);
    place.output(["extend", "--ttl", "50s", lease]).expect(0);
    let shown: Value = serde_json::from_str(&place.output(["show", "--json", lease]).expect(0).out).unwrap();
    assert!(shown["expires_in_ms"].as_u64().unwrap() > 30_000, "{shown}");
    let mut release = Kid::of(place.fencepost(["release", "-"]).stdin(Stdio::piped()));
    release.child().stdin.take().unwrap().write_all(format!("{lease}\n").as_bytes()).unwrap();
    release.said().expect(0);
    place.output(["release", lease]).expect(76);
    place.output(["run", "-n", "site", "--", "true"]).expect(0);
    // On a busy machine it may end before it is printed.
    let short = eventually("a short lease", LONG, || {
        Some(place.output(["acquire", "--ttl", "500ms", "site"])).filter(|said| said.code == Some(0))
    });
    let short = short.out;
    place.output(["run", "-w", "20s", "site", "--", "true"]).expect(0);
    place.output(["extend", short.trim()]).expect(76).complains(&["site"]);
}

/// Events are printed as they happen.
pub(crate) fn watching(place: &Place) {
    let mut watch = Kid::of(&mut place.fencepost(["watch", "--json", "--every", "20ms"]));
    let mut events = watch.out();
    let mut next = || event(&mut events);
    let holder = place.running(&[], "hello", HOLD);
    assert_eq!(next(), ("granted".into(), "hello".into()));
    let waiter = Kid::of(&mut place.fencepost(["run", "hello", "--", "sleep", "1000"]));
    assert_eq!(next(), ("waits".into(), "hello".into()));
    holder.kid.send(Signal::SIGTERM);
    assert_eq!(next(), ("ended".into(), "hello".into()));
    assert_eq!(next(), ("granted".into(), "hello".into()));
    waiter.send(Signal::SIGTERM);
    assert_eq!(next(), ("ended".into(), "hello".into()));
    eventually("the lock is free", LONG, || {
        place.show("hello")["holders"].as_array()?.is_empty().then_some(())
    });
}
