//! The command on the lock service.

use fencepost_testkit::needs;
use fencepost_testkit::server::certify;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::guard::restarts_in_the_queue;
use crate::kit::{HOLD, Kid, LONG, Place, eventually};
use crate::redis::verbs::{evicting, running, waiting, watching};
use crate::serve::Service;

fn at(service: &Service) -> Place {
    Place::patient(&format!("http://{}", service.address))
}

#[test]
fn every_verb() {
    let engine = Place::new();
    let service = Service::start(&engine);
    let place = at(&service);
    running(&place);
    waiting(&place);
    evicting(&place);
    watching(&place);
    restarts_in_the_queue(&place);
    place.output(["doctor"]).expect(0);
    place.output(["acquire", "site"]).expect(64).complains(&["docs/serve.md"]);
    // A firing runs once, whichever of both URLs its starts have, and both know the run.
    let firing = ["run", "--once-per", "1h", "job", "--", "echo", "ran"];
    assert_eq!(place.output(firing).expect(0).out, "ran\n");
    for other in [&place, &engine] {
        assert_eq!(other.output(firing).expect(0).out, "");
        let check = other.output(["check", "job", "--max-age", "1h"]);
        assert!(check.expect(0).out.starts_with("OK: job succeeded "), "{check:?}");
        let shown = other.output(["show", "job"]);
        assert!(shown.expect(0).out.contains("last run: exit code 0, "), "{shown:?}");
    }
    place.output(["run", "site", "--", "false"]).expect(1);
    let check = place.output(["check", "site", "--max-age", "1h"]);
    assert!(check.expect(2).out.contains("the last run failed: exit code 1, "), "{check:?}");
    // The engine and the service have the same locks.
    let holder = place.running(&[], "site", HOLD);
    engine.output(["run", "-n", "site", "--", "true"]).expect(75).complains(&["site"]);
    holder.kid.send(Signal::SIGTERM);
    holder.kid.said().expect(143);
    engine.output(["run", "-n", "site", "--", "true"]).expect(0);
}

/// The service is killed while one program holds a lock and another waits for it. Another copy goes on, on the same port.
#[test]
fn a_killed_service_ends_no_program() {
    let engine = Place::new();
    let service = Service::start(&engine);
    let (place, address) = (at(&service), service.address.clone());
    let holder = place.running(&["--ttl", "1m"], "site", HOLD);
    let waiter = Kid::of(&mut place.fencepost(["run", "-w", "50s", "site", "--", "echo", "next"]));
    place.waiters("site", 1);
    drop(service);
    let _again = Service::listen(&engine, &address, &[]);
    place.output(["run", "-n", "site", "--", "true"]).expect(75);
    place.waiters("site", 1);
    holder.kid.send(Signal::SIGTERM);
    holder.kid.said().expect(143);
    assert_eq!(waiter.said().expect(0).out, "next\n");
}

#[test]
fn a_token_decides() {
    let engine = Place::new();
    let tokens = engine.file("tokens", "");
    let tokens = tokens.to_str().unwrap();
    let service = Service::listen(&engine, "127.0.0.1:0", &["--tokens", tokens]);
    let token = |allow: &str| {
        let said = engine.output(["serve", "token", "add", "--tokens", tokens, "--allow", allow, "ci"]);
        said.expect(0).out.trim().to_owned()
    };
    let place = at(&service);
    let with = |token: &str, arguments: &[&str]| {
        Kid::of(place.fencepost(arguments).env("FENCEPOST_SERVICE_TOKEN", token)).said()
    };
    place
        .output(["run", "-n", "site", "--", "true"])
        .expect(77)
        .complains(&["FENCEPOST_SERVICE_TOKEN", &service.address]);
    let wrong = with("fpt1-guess", &["run", "-n", "site", "--", "true"]);
    assert!(!wrong.expect(77).err.contains("guess"), "{wrong:?}");
    let (some, ops) = (token("acquire:site"), token("read,evict:"));
    with(&some, &["run", "-n", "site", "--", "true"]).expect(0);
    with(&some, &["run", "-n", "other", "--", "true"]).expect(77).complains(&["does not allow to acquire"]);
    with(&some, &["show", "site"]).expect(77);
    with(&some, &["ls"]).expect(77).complains(&["does not allow to read any name"]);
    let part = token("read:site");
    with(&part, &["ls"]).expect(0).complains(&["no locks are held", "only names that begin with 'site'"]);
    with(&part, &["ls", "other"]).expect(77).complains(&["names that begin with \"other\""]);
    let file = place.file("token", &some);
    let url = format!("http://{}?token_file={}", service.address, file.display());
    let holder = Place::at(&url);
    let mut holder = holder.running(&["--ttl", "3s"], "site", HOLD);
    let listed = with(&ops, &["ls"]);
    assert!(listed.expect(0).out.contains("site"), "{listed:?}");
    with(&ops, &["run", "-n", "site", "--", "true"]).expect(77);
    let token = engine.show("site")["holders"][0]["token"].to_string();
    with(&ops, &["evict", "--yes", "--token", &token, "--reason", "maintenance", "site"]).expect(0);
    holder.kid.end();
    holder.kid.said().expect(76).complains(&["evicted by an operator", "maintenance"]);
}

/// Nobody sees the holder, and its token names it all the same.
#[test]
fn an_eviction_by_token_needs_no_look() {
    let engine = Place::new();
    let tokens = engine.file("tokens", "");
    let tokens = tokens.to_str().unwrap();
    let service = Service::listen(&engine, "127.0.0.1:0", &["--tokens", tokens]);
    let said = engine.output(["serve", "token", "add", "--tokens", tokens, "--allow", "evict:", "ci"]);
    let access = said.expect(0).out.trim().to_owned();
    let place = at(&service);
    let evict = |options: &[&str]| {
        let arguments = [&["evict", "--reason", "maintenance", "site"], options].concat();
        Kid::of(place.fencepost(arguments).env("FENCEPOST_SERVICE_TOKEN", &access)).said()
    };
    let holder = engine.running(&[], "site", HOLD);
    let token = engine.show("site")["holders"][0]["token"].as_u64().unwrap();
    let (own, later) = (token.to_string(), (token + 1).to_string());
    evict(&["--token", &own]).expect(77);
    evict(&["--token", &own, "--overdue", "--yes"]).expect(77);
    evict(&["--token", &later, "--yes"]).expect(1).complains(&["audit:", "failed to evict"]);
    let said = evict(&["--token", &own, "--yes", "--json"]);
    said.expect(0).complains(&[
        "evicted: site token",
        "an unknown holder",
        "the look failed",
        "does not allow",
    ]);
    let evicted: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&evicted["token"], &evicted["holder"]), (&token.into(), &Value::Null));
    holder.kid.said().expect(76).complains(&["evicted by an operator"]);
}

/// A waiter that may not evict says so once, and waits on.
#[test]
fn an_eviction_that_the_token_does_not_allow_is_reported() {
    let engine = Place::new();
    let tokens = engine.file("tokens", "");
    let tokens = tokens.to_str().unwrap();
    let service = Service::listen(&engine, "127.0.0.1:0", &["--tokens", tokens]);
    let said = engine.output(["serve", "token", "add", "--tokens", tokens, "--allow", "acquire,read:", "ci"]);
    let token = said.expect(0).out.trim().to_owned();
    // Its program ends later than its limit.
    let script = "trap '' TERM; echo up >&9; sleep 1000";
    let times = ["--max-hold", "2s", "--grace", "100ms", "--release-wait", "1s"];
    let holder = engine.running(&times, "site", script);
    holder.kid.send(Signal::SIGSTOP);
    let mut waiter = Kid::of(
        at(&service)
            .fencepost(["run", "--evict-overdue", "site", "--", "echo", "next"])
            .env("FENCEPOST_SERVICE_TOKEN", &token),
    );
    let mut err = waiter.err();
    let denied = eventually("the denial is reported", LONG, || {
        Some(err.line()).filter(|line| line.contains("the engine denies its eviction"))
    });
    assert!(denied.contains("is overdue") && denied.contains("does not allow"), "{denied}");
    holder.kid.send(Signal::SIGCONT);
    holder.kid.said();
    assert_eq!(waiter.out().line(), "next");
    waiter.end();
}

#[test]
fn over_tls() {
    needs!(OPENSSL);
    let engine = Place::new();
    certify(&engine.path("")).unwrap();
    let (cert, key) = (engine.path("cert.pem"), engine.path("key.pem"));
    let options = ["--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let service = Service::listen(&engine, "127.0.0.1:0", &options);
    let url = format!("https://{}", service.address);
    let place = Place::patient(&format!("{url}?ca={}", cert.display()));
    let holder = place.running(&[], "site", HOLD);
    let waiter = Kid::of(&mut place.fencepost(["run", "-w", "50s", "site", "--", "echo", "next"]));
    place.waiters("site", 1);
    holder.kid.send(Signal::SIGTERM);
    holder.kid.said().expect(143);
    assert_eq!(waiter.said().expect(0).out, "next\n");
    Place::at(&url).output(["run", "-n", "site", "--", "true"]).expect(78).complains(&["ca=/path"]);
    at(&service).output(["run", "-n", "site", "--", "true"]).expect(69).complains(&["write https:"]);
}

/// The certificate that `openssl req -x509` makes by itself is that of an authority.
#[test]
fn the_certificate_of_an_authority_is_told_apart() {
    needs!(OPENSSL);
    let engine = Place::new();
    let subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
    let files = ["-nodes", "-keyout", "key.pem", "-out", "cert.pem"];
    let make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
    let made = Kid::of(&mut engine.via("openssl", [&make[..], &subject, &files].concat())).said();
    made.expect(0);
    let (cert, key) = (engine.path("cert.pem"), engine.path("key.pem"));
    let options = ["--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let service = Service::listen(&engine, "127.0.0.1:0", &options);
    let port = service.address.rsplit_once(':').unwrap().1.to_owned();
    let place = Place::at(&format!("https://localhost:{port}?ca={}", cert.display()));
    place.output(["run", "-n", "site", "--", "true"]).expect(78).complains(&["make one with CA:FALSE"]);
}

#[test]
fn another_path_or_port_is_told_apart() {
    let engine = Place::new();
    let service = Service::start(&engine);
    let other = Place::at(&format!("http://{}/locks", service.address));
    other.output(["run", "-n", "site", "--", "true"]).expect(78).complains(&[&service.address]);
    let nobody = Place::at("http://127.0.0.1:1?timeout=300ms");
    nobody
        .output(["run", "-n", "site", "--", "true"])
        .expect(69)
        .complains(&["http://127.0.0.1:1", "running"]);
}
