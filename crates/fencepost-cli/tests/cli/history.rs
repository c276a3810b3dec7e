//! The runs that an engine keeps: `show` and the monitoring check.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::kit::{HOLD, Kid, LONG, Place, Said, eventually};

fn run(place: &Place, name: &str, code: i32) {
    place
        .output(["run", "--reason", "nightly", name, "--", "sh", "-c", &format!("exit {code}")])
        .expect(code);
}

#[test]
fn a_quiet_check_prints_what_is_wrong_alone() {
    let place = Place::new();
    run(&place, "nightly", 0);
    assert_eq!(check(&place, &["-q", "--max-age", "26h"]).expect(0).out, "");
    let said = check(&place, &["-q", "--max-age", "26h", "--json"]);
    assert!(said.expect(0).out.contains("\"ok\""), "{said:?}");
    run(&place, "nightly", 3);
    let said = check(&place, &["-q", "--max-age", "26h"]);
    assert!(said.expect(2).out.starts_with("CRITICAL: "), "{said:?}");
}

fn check(place: &Place, options: &[&str]) -> Said {
    place.output(["check", "nightly"].iter().chain(options))
}

/// Moves the time of all that is kept back.
fn age(place: &Place, seconds: i64) {
    let database = rusqlite::Connection::open(place.database()).unwrap();
    let text: String =
        database.query_row("SELECT record FROM record WHERE kind = 'run'", [], |row| row.get(0)).unwrap();
    let mut runs: Value = serde_json::from_str(&text).unwrap();
    for run in ["running", "last", "good"] {
        for time in ["since", "ended"] {
            if let Some(micros) = runs[run][time].as_i64() {
                runs[run][time] = (micros - seconds * 1_000_000).into();
            }
        }
    }
    database.execute("UPDATE record SET record = ?1 WHERE kind = 'run'", [runs.to_string()]).unwrap();
}

#[test]
fn show_tells_who_ran_last() {
    let place = Place::new();
    assert_eq!(
        place.output(["show", "nightly"]).expect(0).out,
        "nightly is free (the engine has no record of this name)\n"
    );
    let free = place.show("nightly");
    assert_eq!((&free["runs"], &free["runs_kept"]), (&Value::Null, &Value::Bool(true)));
    run(&place, "nightly", 0);
    let text = place.output(["show", "nightly"]).expect(0).out.clone();
    let (first, rest) = text.split_once('\n').unwrap();
    assert!(first.starts_with("nightly is free"), "{text}");
    assert!(rest.starts_with("  last run: exit code 0, ") && rest.contains("/sh (host "), "{text}");
    assert!(rest.contains("Z to 20") && rest.contains("reason: nightly"), "{text}");
    assert!(!rest.contains("last successful run"), "it is the last one: {text}");
    let good = place.show("nightly")["runs"]["good"].clone();
    run(&place, "nightly", 3);
    let shown = place.show("nightly");
    let last = &shown["runs"]["last"];
    assert_eq!((last["exit_code"].as_i64(), last["reason"].as_str()), (Some(3), Some("nightly")));
    assert_eq!(last["token"], shown["last_token"]);
    assert!(last["since_micros"].as_u64() <= last["ended_micros"].as_u64(), "{shown}");
    assert_eq!(shown["runs"]["good"], good);
    let text = place.output(["show", "nightly"]).expect(0).out.clone();
    assert!(
        text.contains("last run: exit code 3") && text.contains("last successful run: exit code 0"),
        "{text}"
    );
}

#[test]
fn show_answers_by_its_exit_code() {
    let place = Place::new();
    place.output(["show", "--exit-code", "nightly"]).expect(1);
    let held = place.running(&[], "nightly", HOLD);
    place.output(["show", "--exit-code", "nightly"]).expect(0);
    let text = place.output(["show", "--exit-code", "--json", "nightly"]).expect(0).out.clone();
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(shown["runs"]["running"]["token"], shown["holders"][0]["token"]);
    drop(held);
    let lease = place.output(["acquire", "other"]).expect(0).out.trim().to_owned();
    place.output(["show", "--exit-code", &lease]).expect(64).complains(&["--exit-code is for a lock's name"]);
}

#[test]
fn a_check_answers_by_its_exit_code() {
    let place = Place::new();
    // A wrong path is no free lock.
    let out = check(&place, &["--max-held", "2h"]).expect(3).out.clone();
    assert!(out.starts_with("UNKNOWN: ") && out.contains("does not exist"), "{out}");
    let said = check(&place, &["--max-age", "26h"]);
    assert_eq!(said.expect(2).out, "CRITICAL: nightly has had no successful run for 26h: none is recorded\n");
    run(&place, "nightly", 0);
    age(&place, 3_600);
    let said = check(&place, &["--max-age", "26h", "--max-held", "2h", "--nagios"]);
    let out = &said.expect(0).out;
    assert!(out.starts_with("OK: nightly succeeded 1h ago: exit code 0, "), "{out}");
    assert!(out.ends_with(" | age=3600s;;93600 held=0s;7200\n"), "{out}");
    let out = check(&place, &["--max-age", "59m"]).expect(2).out.clone();
    assert!(
        out == "CRITICAL: nightly has had no successful run for 59m: the last one ended 1h ago\n",
        "{out}"
    );
    run(&place, "nightly", 3);
    let out = check(&place, &["--max-age", "26h"]).expect(2).out.clone();
    assert!(out.starts_with("CRITICAL: nightly: the last run failed: exit code 3, "), "{out}");
    run(&place, "nightly", 0);
    check(&place, &["--max-age", "26h"]).expect(0);
    // A host that skips the job has run nothing.
    let held = place.running(&[], "nightly", HOLD);
    place.output(["run", "--skip-ok", "nightly", "--", "false"]).expect(0);
    let out = check(&place, &["--max-age", "26h"]).expect(0).out.clone();
    assert!(out.contains("; held for "), "{out}");
    age(&place, 7_201);
    let out = check(&place, &["--max-age", "1h"]).expect(2).out.clone();
    assert!(out.contains(" ago; held by ") && out.ends_with(" for 2h\n"), "{out}");
    let out = check(&place, &["--max-age", "26h", "--max-held", "2h", "--nagios"]).expect(1).out.clone();
    assert!(out.starts_with("WARNING: nightly has been held for 2h"), "{out}");
    assert!(out.contains(", longer than 2h, by ") && out.contains(" held=720"), "{out}");
    check(&place, &["--max-held", "2h"]).expect(1);
    check(&place, &["--max-held", "3h"]).expect(0);
    drop(held);
}

/// A holder without a program has done none of the work.
#[test]
fn a_hold_is_no_run() {
    let place = Place::new();
    run(&place, "nightly", 3);
    place.output(["hold", "nightly"]).expect(0);
    assert_eq!(place.show("nightly")["runs"]["last"]["exit_code"], 3);
    check(&place, &["--max-age", "1h"]).expect(2);
}

#[test]
fn a_clock_that_was_set_back_makes_no_run_young() {
    let place = Place::new();
    run(&place, "nightly", 0);
    age(&place, -120);
    let out = check(&place, &["--max-age", "1h"]).expect(2).out.clone();
    assert!(out.contains("the last one ended in the future"), "{out}");
    // Clocks are corrected by a little all the time.
    age(&place, 90);
    check(&place, &["--max-age", "1h"]).expect(0);
}

#[test]
fn a_check_that_learns_nothing_says_so() {
    let place = Place::at("redis://127.0.0.1:1");
    let out = check(&place, &["--max-age", "26h"]).expect(3).out.clone();
    assert!(out.starts_with("UNKNOWN: nightly: cannot connect to Redis at "), "{out}");
    let place = Place::at("memory:");
    check(&place, &["--max-age", "26h"]).expect(2);
}

/// Whatever ends the command, the run is seen.
#[test]
fn a_run_that_ends_badly_is_seen() {
    let place = Place::new();
    run(&place, "nightly", 0);
    // The wrapper is killed: nobody reports the end.
    let mut held = place.running(&[], "nightly", HOLD);
    held.kid.send(Signal::SIGKILL);
    held.kid.end();
    let out = eventually("the run has ended", LONG, || {
        let said = check(&place, &["--max-age", "26h"]);
        (said.code == Some(2)).then_some(said.out)
    });
    assert!(
        out.contains("the last run failed: ended without a report, ") && out.contains(", since 20"),
        "{out}"
    );
    let text = place.output(["show", "nightly"]).expect(0).out.clone();
    assert!(
        text.contains("last run: ended without a report") && text.contains("last successful run:"),
        "{text}"
    );
    // A signal ends the program.
    let mut held = place.running(&[], "nightly", HOLD);
    held.kid.send(Signal::SIGTERM);
    assert_eq!(held.kid.end().code(), Some(143));
    assert_eq!(place.show("nightly")["runs"]["last"]["exit_code"], 143);
    // The program is not there.
    place.output(["run", "nightly", "--", "/no/such/program"]).expect(127);
    assert_eq!(place.show("nightly")["runs"]["last"]["exit_code"], 127);
    // An operator takes the lock away.
    let mut held = place.running(&[], "nightly", HOLD);
    let token = place.show("nightly")["holders"][0]["token"].to_string();
    place.output(["evict", "nightly", "--yes", "--token", &token]).expect(0);
    assert_eq!(held.kid.end().code(), Some(76));
    let last = place.show("nightly")["runs"]["last"].clone();
    assert_eq!((&last["exit_code"], last["end"].as_str()), (&Value::from(76), Some("evicted")), "{last}");
    // It is stopped at its longest time, and ends well.
    let script = "trap 'exit 0' TERM; sleep 1000 & wait";
    place.output(["run", "--max-hold", "300ms", "nightly", "--", "sh", "-c", script]).expect(124);
    let last = place.show("nightly")["runs"]["last"].clone();
    assert_eq!((&last["exit_code"], last["end"].as_str()), (&Value::from(124), Some("max-hold")), "{last}");
    let out = check(&place, &["--max-age", "26h"]).expect(2).out.clone();
    assert!(out.contains("the last run failed: exit code 124, stopped by --max-hold"), "{out}");
}

#[test]
fn a_check_writes_metrics_for_a_node_exporter() {
    let place = Place::new();
    run(&place, "nightly", 0);
    run(&place, "nightly", 3);
    let file = place.path("nightly.prom");
    let options = ["--max-age", "26h", "--json", "--textfile", file.to_str().unwrap()];
    let said: Value = serde_json::from_str(&check(&place, &options).expect(2).out).unwrap();
    assert_eq!((said["status"].as_str(), said["code"].as_u64()), (Some("critical"), Some(2)));
    assert_eq!((&said["runs"]["last"]["exit_code"], &said["held_ms"]), (&Value::from(3), &Value::from(0)));
    let text = fs::read_to_string(&file).unwrap();
    for line in [
        "# TYPE fencepost_check_status gauge",
        "fencepost_check_status{name=\"nightly\"} 2",
        "fencepost_held_seconds{name=\"nightly\"} 0",
        "fencepost_last_run_exit_code{name=\"nightly\"} 3",
    ] {
        assert!(text.lines().any(|known| known == line), "no {line:?} in {text}");
    }
    let seconds = |metric: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(&format!("fencepost_{metric}{{"))).unwrap();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let [good, start, end] = ["last_good_run_end", "last_run_start", "last_run_end"]
        .map(|it| seconds(&format!("{it}_timestamp_seconds")));
    assert!(1.7e9 < good && good <= start && start <= end, "{text}");
    // A file that cannot be written is no success, and nothing half written is left.
    let folder = place.path("no/such/folder.prom");
    let options = ["--max-held", "1h", "--textfile", folder.to_str().unwrap()];
    assert!(check(&place, &options).expect(3).out.starts_with("UNKNOWN: nightly: cannot write "));
    // It hides no failure.
    let options = ["--max-age", "1h", "--textfile", folder.to_str().unwrap()];
    let out = check(&place, &options).expect(2).out.clone();
    assert!(out.contains("the last run failed: exit code 3") && out.contains("; cannot write "), "{out}");
    // A device is not replaced by a file.
    let [socket, link] = ["socket.prom", "link.prom"].map(|name| place.path(name));
    let _socket = UnixListener::bind(&socket).unwrap();
    symlink(&file, &link).unwrap();
    for file in [socket, link] {
        let options = ["--max-held", "1h", "--textfile", file.to_str().unwrap()];
        assert!(check(&place, &options).expect(3).out.contains("it is not a regular file"));
        assert!(!file.symlink_metadata().unwrap().is_file());
    }
    // The engine does not answer: that is a result, too.
    let down = Place::at("redis://127.0.0.1:1");
    let file = down.path("nightly.prom");
    check(&down, &["--max-age", "26h", "--textfile", file.to_str().unwrap()]).expect(3);
    assert!(down.read("nightly.prom").contains("fencepost_check_status{name=\"nightly\"} 3\n"));
    let left: Vec<_> =
        fs::read_dir(down.path("")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".new")), "{left:?}");
}

#[test]
fn a_lease_is_a_run() {
    let place = Place::new();
    let lease = place.output(["acquire", "--ttl", "60s", "nightly"]).expect(0).out.trim().to_owned();
    assert_eq!(
        place.show("nightly")["runs"]["running"]["token"],
        place.show("nightly")["holders"][0]["token"]
    );
    let mut release = place.fencepost(["release", "--report", "0"]);
    Kid::of(release.env("FENCEPOST_LEASE", &lease)).said().expect(0);
    check(&place, &["--max-age", "1h"]).expect(0);
    // One that is released without a report has not ended well.
    let lease = place.output(["acquire", "--ttl", "60s", "nightly"]).expect(0).out.trim().to_owned();
    Kid::of(place.fencepost(["release"]).env("FENCEPOST_LEASE", &lease)).said().expect(0);
    let out = check(&place, &["--max-age", "1h"]).expect(2).out.clone();
    assert!(out.contains("the last run failed: ended without an exit code"), "{out}");
}

#[test]
fn redis_keeps_runs_too() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let place = Place::patient(&server.url());
    run(&place, "nightly", 0);
    assert_eq!(place.show("nightly")["holders"], Value::Array(Vec::new()));
    check(&place, &["--max-age", "26h", "--max-held", "2h"]).expect(0);
    run(&place, "nightly", 3);
    let out = check(&place, &["--max-age", "26h"]).expect(2).out.clone();
    assert!(out.starts_with("CRITICAL: nightly: the last run failed: exit code 3, "), "{out}");
    let lease = place.output(["acquire", "--ttl", "60s", "nightly"]).expect(0).out.trim().to_owned();
    let mut release = place.fencepost(["release", "--report", "0"]);
    Kid::of(release.env("FENCEPOST_LEASE", &lease)).said().expect(0);
    check(&place, &["--max-age", "26h"]).expect(0);
    let lease = place.output(["acquire", "--ttl", "60s", "nightly"]).expect(0).out.trim().to_owned();
    Kid::of(place.fencepost(["release"]).env("FENCEPOST_LEASE", &lease)).said().expect(0);
    let out = check(&place, &["--max-age", "26h"]).expect(2).out.clone();
    assert!(out.contains("the last run failed: ended without an exit code"), "{out}");
    // The wrapper is killed: its lease ends, and nobody reports the end.
    let mut held = place.running(&["--ttl", "2s"], "nightly", HOLD);
    let token = place.show("nightly")["holders"][0]["token"].clone();
    held.kid.send(Signal::SIGKILL);
    held.kid.end();
    let last = eventually("the run has ended", LONG, || {
        let shown = place.show("nightly");
        shown["holders"].as_array().unwrap().is_empty().then(|| shown["runs"]["last"].clone())
    });
    assert_eq!((&last["token"], &last["ended_micros"]), (&token, &Value::Null), "{last}");
    let other = format!("{}?history=1d", server.url());
    let place = Place::at(&other);
    run(&place, "daily", 0);
    place.output(["check", "daily", "--max-age", "1h"]).expect(0);
}
