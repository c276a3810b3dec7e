//! Looking and evicting.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use fencepost_core::{Client, Loss, Registry};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::kit::{HOLD, Kid, LONG, Place, event, eventually};

#[test]
fn listings_show_holders_and_waiters() {
    let place = Place::new();
    assert_eq!(place.output(["ls"]).expect(0).out, "");
    let holder = place.running(&["--reason", "nightly"], "stock/1", HOLD);
    let _other = place.running(&["-s"], "prices", HOLD);
    let first = Kid::of(&mut place.fencepost(["run", "--reason", "first", "stock/1", "--", "true"]));
    place.waiters("stock/1", 1);
    let second = Kid::of(&mut place.fencepost(["run", "--reason", "second", "stock/1", "--", "true"]));
    let shown = place.waiters("stock/1", 2);
    let (held, line) = (&shown["holders"][0], &shown["waiters"]);
    assert_eq!(held["pid"].as_i64(), Some(holder.kid.pid().into()));
    assert_eq!((held["reason"].as_str(), held["mode"].as_str()), (Some("nightly"), Some("exclusive")));
    assert!(held["token"].as_u64().is_some() && held["since_micros"].as_u64().is_some());
    assert_eq!(held["since"], "grant");
    assert_eq!(line[0]["pid"].as_i64(), Some(first.pid().into()));
    assert_eq!(line[1]["pid"].as_i64(), Some(second.pid().into()));
    assert_eq!(line[0]["token"], Value::Null);

    let all: Value = serde_json::from_str(&place.output(["ls", "--json"]).out).unwrap();
    let names: Vec<&str> =
        all.as_array().unwrap().iter().map(|info| info["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["prices", "stock/1"]);
    let some: Value = serde_json::from_str(&place.output(["ls", "stock/", "--json"]).out).unwrap();
    assert_eq!(some.as_array().unwrap().len(), 1);
    let queue: Value = serde_json::from_str(&place.output(["queue", "stock/1", "--json"]).out).unwrap();
    assert_eq!(queue, *line_without_age(&shown, &queue));

    let text = place.output(["ls", "-l"]).expect(0).out.clone();
    assert!(text.contains("stock/1") && text.contains(&holder.kid.pid().to_string()), "{text}");
    let text = place.output(["show", "stock/1"]).expect(0).out.clone();
    assert!(text.contains("nightly") && text.contains("1. waiting") && text.contains("2. waiting"), "{text}");
    let text = place.output(["queue", "stock/1"]).expect(0).out.clone();
    assert!(text.find("first").unwrap() < text.find("second").unwrap(), "{text}");
    assert_eq!(
        place.output(["show", "nobody"]).expect(0).out,
        "nobody is free (the engine has no record of this name)\n"
    );
    assert_eq!(place.output(["queue", "nobody"]).expect(0).out, "");
}

#[test]
fn a_limit_of_permits_counts_for_all() {
    let place = Place::new();
    let said = place.output(["permits", "gpu"]);
    assert!(said.expect(0).out.contains("no limit is stored"), "{said:?}");
    assert!(place.output(["permits", "gpu", "--set", "1"]).expect(0).out.contains("at most 1 permits"));
    let _holder = place.running(&["--permits", "4"], "gpu", HOLD);
    place.output(["run", "-n", "--permits", "4", "gpu", "--", "true"]).expect(75);
    let shown = place.show("gpu");
    assert_eq!(shown["stored_permits"], 1);
    assert!(place.output(["show", "gpu"]).expect(0).out.contains("at most 1 permits, for all clients"));
    let json = place.output(["permits", "gpu", "--set", "2", "--json"]).expect(0).out.clone();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["stored_permits"], 2);
    place.output(["run", "-n", "--permits", "4", "gpu", "--", "true"]).expect(0);
    place.output(["permits", "gpu", "--reset"]).expect(0);
    assert_eq!(place.show("gpu")["stored_permits"], Value::Null);
    place.output(["permits", "gpu", "--set", "0"]).expect(64).complains(&["use a whole number, 1 or more"]);
    place.output(["permits", "gpu", "--set", "1", "--reset"]).expect(64);
    place.output(["-b", "memory:", "permits", " "]).expect(64);
}

/// Two looks differ in the ages; the second one's are taken over.
fn line_without_age<'a>(shown: &Value, queue: &'a Value) -> &'a Value {
    for (before, after) in shown["waiters"].as_array().unwrap().iter().zip(queue.as_array().unwrap()) {
        for field in ["holder", "host", "pid", "mode", "reason", "since_micros"] {
            assert_eq!(before[field], after[field], "{field}");
        }
    }
    queue
}

#[test]
fn what_others_chose_does_not_steer_the_terminal() {
    let place = Place::new();
    let _holder = place.running(&["--reason", "red \u{1b}[31m alert"], "hello", HOLD);
    for verb in [["show", "hello"], ["ls", ""]] {
        assert!(!place.output(verb).expect(0).out.contains('\u{1b}'));
    }
    let busy = place.output(["run", "-n", "hello", "--", "true"]);
    assert!(!busy.expect(75).err.contains('\u{1b}'), "{busy:?}");
}

#[test]
fn evict_names_its_victim_by_token_and_asks_first() {
    let place = Place::new();
    let holder = place.running(&[], "hello", HOLD);
    let token = place.show("hello")["holders"][0]["token"].as_u64().unwrap();
    place
        .output(["evict", "hello", "--token", &(token + 1).to_string(), "--yes"])
        .expect(1)
        .complains(&["fencepost show"]);
    place.output(["evict", "hello", "--token", &token.to_string()]).expect(64).complains(&["--yes"]);
    for arguments in [&["evict", "hello"][..], &["evict", "hello", "--yes"]] {
        place.output(arguments).expect(64).complains(&["with the token that"]);
    }
    assert_eq!(place.show("hello")["holders"][0]["evicted"], Value::Bool(false));
    // At once: the next one need not wait for the holder's end.
    let said = place.output(["evict", "hello", "--token", &token.to_string(), "--yes", "--now"]);
    said.expect(0).complains(&["audit:", "at once", "none given"]);
    place.output(["run", "-n", "hello", "--", "true"]).expect(0);
    holder.kid.said().expect(76);
}

/// The command says when the lock is free, and when there is nothing to do.
#[test]
fn evict_says_when_the_lock_is_free() {
    let place = Place::new();
    let free = ["evict", "hello", "--token", "7", "--yes"];
    place.output(free).expect(1).complains(&["hello is free"]);
    let holder = place.running(&["--on-lost", "ignore", "--ttl", "60s"], "hello", HOLD);
    let token = place.show("hello")["holders"][0]["token"].to_string();
    let evict = ["evict", "hello", "--token", &token, "--yes"];
    let said = place.output(evict);
    said.expect(0).complains(&[
        "audit:",
        "is told at its next renewal",
        "when the holder has stopped",
        "--now",
    ]);
    let said = place.output(evict);
    said.expect(0).complains(&[
        "is already evicted",
        "when the holder has stopped",
        "--now frees it at once",
    ]);
    assert!(!said.err.contains("audit:"), "{said:?}");
    place.output([&evict[..], &["--now"]].concat()).expect(0).complains(&["no longer has the lock"]);
    place.output(evict).expect(1).complains(&["hello is free"]);
    holder.kid.send(Signal::SIGTERM);
    holder.kid.said();
}

#[test]
fn evict_takes_the_lock_from_a_holder_that_is_overdue() {
    let place = Place::new();
    place
        .output(["evict", "hello", "--overdue", "--yes"])
        .expect(1)
        .complains(&["overdue", "fencepost show"]);
    // The grace and the release come behind the 2 s.
    let times = ["--max-hold", "2s", "--grace", "1s", "--release-wait", "1s", "--ttl", "60s"];
    let holder = place.running(&[&times[..], &["--reason", "hangs"]].concat(), "hello", HOLD);
    // The wrapper hangs: it cannot end the grant when its time has come.
    holder.kid.send(Signal::SIGSTOP);
    let shown = place.show("hello")["holders"][0].clone();
    assert_eq!((shown["max_hold_ms"].as_u64(), shown["reason"].as_str()), (Some(4_000), Some("hangs")));
    if shown["overdue"] == false {
        assert!(place.output(["show", "hello"]).expect(0).out.contains(", limit 4s"));
    }
    eventually("it is overdue", LONG, || {
        place.show("hello")["holders"][0]["overdue"].as_bool()?.then_some(())
    });
    assert!(place.output(["ls"]).expect(0).out.contains("overdue"));
    assert!(place.output(["show", "hello"]).expect(0).out.contains(", limit 4s (overdue)"));
    place.output(["evict", "hello", "--overdue", "--token", "1", "--yes"]).expect(1).complains(&["overdue"]);
    let said = place.output(["evict", "hello", "--overdue", "--yes", "--now", "--json"]);
    let evicted: Value = serde_json::from_str(&said.expect(0).complains(&["audit:", "at once"]).out).unwrap();
    assert_eq!(evicted["holder"]["overdue"], true);
    place.output(["run", "-n", "hello", "--", "true"]).expect(0);
    holder.kid.send(Signal::SIGCONT);
    holder.kid.said();
    // The default grace is at most a third of the lease, and the release may take 2 s.
    let _short = place.running(&["--max-hold", "1m", "--ttl", "3s"], "short", HOLD);
    assert_eq!(place.show("short")["holders"][0]["max_hold_ms"].as_u64(), Some(63_000));
}

#[test]
fn a_run_that_waits_evicts_a_holder_that_is_overdue() {
    let place = Place::new();
    for refused in [["-n", "--evict-overdue"], ["--skip-ok", "--evict-overdue"]] {
        let said = place.output(["run", refused[0], refused[1], "hello", "--", "true"]);
        said.expect(64).complains(&["--evict-overdue"]);
    }
    // Its lease is renewed, and its program does not keep to the limit.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let registry = Registry::new().with("sqlite", fencepost_sqlite::open);
    let url = format!("sqlite:{}", place.path("locks.db").display());
    let hung = Client::builder().max_hold_hint(Duration::from_millis(1)).connect(&registry, &url);
    let hung = runtime.block_on(hung).unwrap();
    let mutex = hung.mutex("hello").unwrap();
    for verb in [&["run", "hello", "--", "true"][..], &["acquire", "hello", "--ttl", "1s"]] {
        let guard = runtime.block_on(mutex.lock().into_future()).unwrap();
        let mut command = place.fencepost([verb[0], "-b", &url, "--evict-overdue", "-w", "30s"]);
        let waiting = Kid::of(command.args(&verb[1..]));
        let lost = async { tokio::time::timeout(LONG, guard.lost()).await };
        assert_eq!(runtime.block_on(lost), Ok(Loss::Evicted));
        drop(guard);
        waiting.said().expect(0).complains(&["audit:", "evicted: hello token", "limit of 0.001 s"]);
    }
}

#[test]
fn watch_prints_what_happens() {
    let place = Place::new();
    let mut watch = Kid::of(&mut place.fencepost(["watch", "--json", "--every", "20ms"]));
    let mut events = watch.out();
    let mut next = || event(&mut events);
    let holder = place.running(&[], "hello", HOLD);
    assert_eq!(next(), ("granted".into(), "hello".into()));
    let waiter = Kid::of(&mut place.fencepost(["run", "hello", "--", "sleep", "1000"]));
    assert_eq!(next(), ("waits".into(), "hello".into()));
    let token = place.show("hello")["holders"][0]["token"].to_string();
    holder.kid.send(Signal::SIGTERM);
    assert_eq!(next(), ("ended".into(), "hello".into()));
    assert_eq!(next(), ("granted".into(), "hello".into()));
    assert_ne!(place.show("hello")["holders"][0]["token"].to_string(), token);
    waiter.send(Signal::SIGTERM);
    assert_eq!(next(), ("ended".into(), "hello".into()));
}

#[test]
fn hold_ends_with_its_input_or_a_signal() {
    let place = Place::new();
    let mut hold = Kid::of(place.fencepost(["hold", "b", "a"]).stdin(Stdio::piped()));
    let mut out = hold.out();
    assert!(out.line().starts_with("holding a token "));
    assert!(out.line().starts_with("holding b token "));
    place.output(["run", "-n", "a", "--", "true"]).expect(75);
    hold.child().stdin.as_mut().unwrap().write_all(b"not yet\n").unwrap();
    place.output(["run", "-n", "b", "--", "true"]).expect(75);
    drop(hold.child().stdin.take());
    hold.said().expect(0);
    place.output(["run", "-n", "a", "b", "--", "true"]).expect(0);

    let mut hold = Kid::of(&mut place.fencepost(["hold", "--no-stdin", "a"]));
    let mut out = hold.out();
    out.line();
    hold.send(Signal::SIGTERM);
    hold.said().expect(143);
    place.output(["run", "-n", "a", "--", "true"]).expect(0);
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[test]
fn hold_says_when_the_lock_is_lost() {
    let place = Place::new();
    let hold = Kid::of(&mut place.fencepost(["hold", "--no-stdin", "a"]));
    let token =
        eventually("it is held", LONG, || Some(place.show("a")["holders"][0]["token"].as_u64()?.to_string()));
    place.output(["evict", "a", "--token", &token, "--yes"]).expect(0);
    hold.said().expect(76).complains(&["evicted"]);
}

#[test]
fn help_completions_and_manual_pages() {
    let place = Place::new();
    assert!(place.output(["--version"]).expect(0).out.starts_with("fencepost "));
    assert!(place.output(["--help"]).expect(0).out.contains("fencepost run hello -- echo hi"));
    for verb in [
        "run",
        "acquire",
        "extend",
        "release",
        "ls",
        "show",
        "queue",
        "watch",
        "top",
        "evict",
        "hold",
        "doctor",
        "schema",
        "completions",
        "man",
    ] {
        let help = place.output([verb, "--help"]);
        assert!(help.expect(0).out.contains("Example"), "{verb}: {help:?}");
        assert!(
            place.output(["man", verb]).expect(0).out.contains(&format!(".TH fencepost-{verb}")),
            "{verb}"
        );
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.output(["completions", shell]).expect(0).out.contains("evict"));
    }
    place.output(["man", "nonsense"]).expect(64);
    // The help shows no password.
    let help =
        Kid::of(place.fencepost(["run", "--help"]).env("FENCEPOST_BACKEND", "redis://:hunter2@host")).said();
    assert!(!help.expect(0).out.contains("hunter2"));
}

#[test]
fn a_reason_is_shown_by_show_and_by_ls() {
    let place = Place::new();
    let _holder = place.running(&["--reason", "nightly job"], "backup", HOLD);
    for (verb, shown) in [
        (&["show", "backup"][..], true),
        (&["show", "--json", "backup"], true),
        (&["ls", "--json"], true),
        (&["ls"], true),
        (&["ls", "-l"], true),
    ] {
        assert_eq!(place.output(verb).expect(0).out.contains("nightly job"), shown, "{verb:?}");
    }
}
